"""Losses, and the module of a model with its loss."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.data.batch import Batch


def binary(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns each sample's binary cross-entropy, `[B]`, summed over the labels; logits and labels are `[B, T]`."""
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=1)


LossAndOutputs = tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]
"""Returns the loss of each sample, `[B]`, from logits and labels, `[B, T]` float32 each."""

LOSSES: dict[str, Loss] = {"binary": binary}


# TorchRec's DLRMTrain takes one label and no weights, and the mean over the local batch, in which a rank with a padded
# batch would count its samples more.
class ModelWithLoss(nn.Module):
    """A model and its loss, weighted and scaled so that ranks can average their gradients.

    Args:
        model: Gives logits `[B, T]` for dense features `[B, D]` and sparse features.
        loss: The loss of each sample.
        device_type: Type of the device, such as cuda.
        autocast: Precision that the model computes in, None for that of its parameters; parameters and the loss stay
            float32.
    """

    def __init__(self, model: nn.Module, loss: Loss, device_type: str, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        self._loss, self._device_type, self._autocast = loss, device_type, autocast

    def forward(self, batch: Batch) -> LossAndOutputs:
        """Computes the loss of the local batch, such that its mean over the ranks is that of the global batch.

        The loss of the global batch is the sum of its samples' losses, each times its weight, over the number of
        samples.

        Returns:
            The loss, a scalar, and then the same detached, the logits `[B, T]`, the labels `[B, T]` and the weights
            `[B]`.
        """
        with torch.autocast(self._device_type, self._autocast, enabled=self._autocast is not None):
            logits = self.model(batch.dense, batch.sparse)
        logits = logits.float()  # bfloat16 has 8 bits, float16 11, too few for a loss
        loss = (self._loss(logits, batch.labels) * batch.weights).sum() * batch.scale
        return loss, (loss.detach(), logits.detach(), batch.labels, batch.weights)
