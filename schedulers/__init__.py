"""TorchX plugins that run jobs, and a doctor. Use components._launch, trainer.core.outcome, trainer.plan.hardware."""
