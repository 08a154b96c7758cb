"""Metrics of one class of several, by a score for each."""

import torch
from torch import Tensor

from trainer.metrics.base import Sums
from trainer.metrics.ratio import ratio
from trainer.models.losses import softmax


class ClassSums(Sums):
    """Sums of weights, of right predictions and of losses (softmax cross-entropy), `[3]`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (3,))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums; the scores are `[B, C]`, the labels numbers of classes."""
        losses, right = softmax(logits, labels), logits.argmax(1) == labels
        self.state += torch.stack([weights.sum(), (weights * right).sum(), (weights * losses).sum()])


def accuracy(sums: Tensor) -> dict[str, float]:
    """Returns the share of samples whose class has the highest score."""
    weight, right, _ = sums.tolist()
    return ratio(right, weight)


def cross_entropy(sums: Tensor) -> dict[str, float]:
    """Returns the mean softmax cross-entropy."""
    weight, _, loss = sums.tolist()
    return ratio(loss, weight)
