"""Metrics of binary labels that need the order of all predictions, from a histogram over their logits."""

import math

import torch
from torch import Tensor

from trainer.metrics.base import Sums
from trainer.metrics.ratio import ratio

BINS = 1 << 16  # 1 MiB for a task; exact to 1e-7 where it was measured
LOGIT_LIMIT = 16.0  # logits beyond it share the outermost bins; sigmoid(-16) is 1.1e-7


class LogitHistogram(Sums):
    """Weights of negatives and positives in bins of the logit, `[2, BINS]`, each 0.0005 wide."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (2, BINS))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds samples to the histograms of negatives and positives."""
        bins = ((logits.clamp(-LOGIT_LIMIT, LOGIT_LIMIT) / LOGIT_LIMIT + 1) * (BINS / 2)).long().clamp(max=BINS - 1)
        for side, share in enumerate((1 - labels, labels)):
            self.state[side] += torch.bincount(bins, weights=weights * share, minlength=BINS)


def auc(histogram: Tensor) -> dict[str, float]:
    """Returns the area under the ROC curve, and the most by which counting samples of one bin as ties can move it."""
    negative, positive = histogram
    below = negative.cumsum(0) - negative
    pairs = (positive.sum() * negative.sum()).item()
    ties = (positive * negative).sum().item() / 2
    area = ratio((positive * below).sum().item() + ties, pairs)
    return {"": area[""], "_error": ratio(ties, pairs)[""]}


def auprc(histogram: Tensor) -> dict[str, float]:
    """Returns the area under the precision-recall curve: the mean over the positives of the precision at each.

    This is average precision, without interpolation between points (Davis and Goadrich, ICML 2006).
    """
    negative, positive = histogram.flip(1).cumsum(1)  # from each bin upwards
    precision = torch.where(positive > 0, positive / (positive + negative), 0)
    return ratio((histogram[1].flip(0) * precision).sum().item(), positive[-1].item())


def accuracy(histogram: Tensor, threshold: float) -> dict[str, float]:
    """Returns the share of samples on the side of the threshold where their label is."""
    low, high = _split(histogram, threshold)
    return ratio((low[0] + high[1]).item(), histogram.sum().item())


def precision(histogram: Tensor, threshold: float) -> dict[str, float]:
    """Returns the share of positives among the samples at or above the threshold."""
    _, high = _split(histogram, threshold)
    return ratio(high[1].item(), high.sum().item())


def recall(histogram: Tensor, threshold: float) -> dict[str, float]:
    """Returns the share of the positives that are at or above the threshold."""
    _, high = _split(histogram, threshold)
    return ratio(high[1].item(), histogram[1].sum().item())


def _split(histogram: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Returns the weights of negatives and positives below a probability and from it, split at the nearest bin edge."""
    logit = math.log(threshold) - math.log1p(-threshold)
    edge = min(max(round((logit / LOGIT_LIMIT + 1) * (BINS / 2)), 0), BINS)
    return histogram[:, :edge].sum(1), histogram[:, edge:].sum(1)
