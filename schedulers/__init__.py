"""TorchX plugins that run jobs, and a doctor. Use components.launch, trainer.core.outcome, planner.hardware."""
