"""Metrics of binary labels that are ratios of sums, weighted, in float64."""

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from trainer.metrics.base import Sums
from trainer.metrics.ratio import ratio

RELIABILITY_BINS = 15  # as in Guo et al.


class BinarySums(Sums):
    """Sums of weights, labels, losses (binary cross-entropy) and predicted probabilities, `[4]`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (4,))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums."""
        losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
        sums = weights.sum(), (weights * labels).sum(), (weights * losses).sum(), (weights * logits.sigmoid()).sum()
        self.state += torch.stack(sums)


def log_loss(sums: Tensor) -> dict[str, float]:
    """Returns the mean binary cross-entropy."""
    weight, _, loss, _ = sums.tolist()
    return ratio(loss, weight)


def normalized_entropy(sums: Tensor) -> dict[str, float]:
    """Returns the log loss over that of always predicting the label rate (He et al., ADKDD 2014)."""
    weight, positive, loss, _ = sums.tolist()
    return ratio(ratio(loss, weight)[""], _entropy(ratio(positive, weight)[""]))


def calibration(sums: Tensor) -> dict[str, float]:
    """Returns the sum of the predictions over the sum of the labels; 1 is best."""
    _, positive, _, predicted = sums.tolist()
    return ratio(predicted, positive)


def label_rate(sums: Tensor) -> dict[str, float]:
    """Returns the mean label."""
    weight, positive, _, _ = sums.tolist()
    return ratio(positive, weight)


def _entropy(rate: float) -> float:
    if not 0 < rate < 1:
        return math.nan
    return -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)


class ReliabilityBins(Sums):
    """Sums of prediction minus label, and of weights, in equal bins of the predicted probability, `[2, 15]`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (2, RELIABILITY_BINS))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds samples to their bins."""
        predicted = logits.sigmoid()
        bins = (predicted * RELIABILITY_BINS).long().clamp(max=RELIABILITY_BINS - 1)
        for row, values in enumerate((weights * (predicted - labels), weights)):
            self.state[row] += torch.bincount(bins, weights=values, minlength=RELIABILITY_BINS)


def ece(bins: Tensor) -> dict[str, float]:
    """Returns the expected calibration error (Guo et al., ICML 2017).

    This is the mean over the bins, by weight, of the distance between mean prediction and mean label.
    """
    return ratio(bins[0].abs().sum().item(), bins[1].sum().item())
