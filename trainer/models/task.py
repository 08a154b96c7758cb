"""The model and its loss: what one training step computes."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.data.batch import Batch


class BinaryTask(nn.Module):
    """Binary cross-entropy over every label, added up.

    Args:
        model: Gives logits `[B, T]` for dense features `[B, D]` and sparse features.
        device_type: What it computes on.
        bf16: Whether the model computes in bfloat16; parameters and the loss stay float32.
    """

    def __init__(self, model: nn.Module, device_type: str, bf16: bool) -> None:
        super().__init__()
        self.model = model
        self._device_type, self._bf16 = device_type, bf16

    def forward(self, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Computes the loss of the local batch, such that its mean over the ranks is that of the global batch.

        The loss of the global batch is the sum of its rows' losses, each times its weight, over the number of rows.

        Returns:
            The loss, a scalar, and then the same detached, the logits `[B, T]`, the labels `[B, T]` and the weights
            `[B]`.
        """
        with torch.autocast(self._device_type, torch.bfloat16, enabled=self._bf16):
            logits = self.model(batch.dense, batch.sparse)
        logits = logits.float()
        row_losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none").sum(dim=1)
        loss = (row_losses * batch.weights).sum() * batch.scale
        return loss, (loss.detach(), logits.detach(), batch.labels, batch.weights)
