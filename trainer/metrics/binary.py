"""Metrics of binary labels, weighted, summed in float64."""

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from trainer.metrics.base import Metric

BINS = 1 << 16  # 1 MiB for a label; exact to 1e-7 where it was measured
LOGIT_LIMIT = 16.0  # logits beyond it share the outermost bins; sigmoid(-16) is 1.1e-7


class Auc(Metric):
    """Area under the ROC curve, from a histogram over the logits.

    Two samples in one bin, 0.0005 wide, count as a tie; `auc_error` is the most by which that can move the AUC.
    """

    higher_is_better = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (2, BINS))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds samples to the histograms of negatives and positives."""
        bins = ((logits.clamp(-LOGIT_LIMIT, LOGIT_LIMIT) / LOGIT_LIMIT + 1) * (BINS / 2)).long().clamp(max=BINS - 1)
        for side, share in enumerate((1 - labels, labels)):
            self.state[side] += torch.bincount(bins, weights=weights * share, minlength=BINS)

    def compute(self, state: Tensor) -> dict[str, float]:
        """Returns the AUC and its error."""
        negative, positive = state
        below = negative.cumsum(0) - negative
        pairs = (positive.sum() * negative.sum()).item()
        ties = (positive * negative).sum().item() / 2
        return {"": _ratio((positive * below).sum().item() + ties, pairs), "_error": _ratio(ties, pairs)}


class Ratio(Metric):
    """One sum over another, which are its state."""

    def compute(self, state: Tensor) -> dict[str, float]:
        """Returns the ratio."""
        part, whole = state.tolist()
        return {"": _ratio(part, whole)}


class LogLoss(Ratio):
    """Mean binary cross-entropy."""

    higher_is_better = False

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums of losses and of weights."""
        losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
        self.state += torch.stack([(weights * losses).sum(), weights.sum()])


class NormalizedEntropy(Metric):
    """Log loss over that of always predicting the label rate (He et al., ADKDD 2014)."""

    higher_is_better = False

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (3,))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums of weights, labels and losses."""
        losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
        self.state += torch.stack([weights.sum(), (weights * labels).sum(), (weights * losses).sum()])

    def compute(self, state: Tensor) -> dict[str, float]:
        """Returns the ratio."""
        weight, positive, loss = state.tolist()
        return {"": _ratio(_ratio(loss, weight), _entropy(_ratio(positive, weight)))}


class Calibration(Ratio):
    """Sum of the predictions over the sum of the labels; 1 is best."""

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums of predictions and of labels."""
        self.state += torch.stack([(weights * logits.sigmoid()).sum(), (weights * labels).sum()])


class LabelRate(Ratio):
    """Mean label."""

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums of labels and of weights."""
        self.state += torch.stack([(weights * labels).sum(), weights.sum()])


def _entropy(rate: float) -> float:
    if not 0 < rate < 1:
        return math.nan
    return -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
