"""TorchX plugins that run jobs, and `torchx doctor`.

Uses components._launch, trainer.core.outcome and trainer.plan.hardware, and never torch.
"""
