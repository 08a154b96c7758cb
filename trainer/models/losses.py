"""Losses of single samples, by name."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional


def binary(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns each sample's binary cross-entropy, `[B]`, summed over the labels; logits and labels are `[B, T]`."""
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=1)


Loss = Callable[[Tensor, Tensor], Tensor]
"""Returns the loss of each sample, `[B]`, from logits and labels, `[B, T]` float32 each."""

LOSSES: dict[str, Loss] = {"binary": binary}
