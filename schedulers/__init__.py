"""TorchX plugins that run a component's job somewhere, and `torchx doctor`.

May use: components._launch, trainer.core.outcome, trainer.plan.hardware; never torch.
"""
