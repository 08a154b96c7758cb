"""What is measured of a model's predictions, in memory that does not grow with the rows, exact over ranks."""

import math

import torch
from torch import Tensor

from trainer.distributed import Ranks, sum_over_ranks

BINS = 1 << 16
LOGIT_LIMIT = 16.0  # logits beyond it share the outermost bins; sigmoid(-16) is 1.1e-7


class BinaryMetrics:
    """Weighted metrics of `T` binary labels, summed up in float64.

    AUC comes from a histogram over the logits: two rows in one bin, 0.0005 wide, count as a tie. `auc_error` states
    the most by which that can move the AUC.

    Args:
        labels: Names of the labels.
        device: Where predictions come from.
    """

    def __init__(self, labels: list[str], device: torch.device) -> None:
        self._labels = labels
        self._histograms = torch.zeros(len(labels), 2, BINS, dtype=torch.float64, device=device)
        self._sums = torch.zeros(len(labels), 4, dtype=torch.float64, device=device)  # weight, label, prediction, loss
        self._rows = torch.zeros(1, dtype=torch.float64, device=device)

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds rows.

        Args:
            logits: `[B, T]`.
            labels: `[B, T]`, in [0, 1].
            weights: `[B]`; a row of weight 0 changes nothing.
        """
        logits, labels, weights = logits.double(), labels.double(), weights.double()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        bins = ((logits.clamp(-LOGIT_LIMIT, LOGIT_LIMIT) / LOGIT_LIMIT + 1) * (BINS / 2)).long().clamp(max=BINS - 1)
        for t in range(len(self._labels)):
            for side, share in enumerate((1 - labels[:, t], labels[:, t])):
                self._histograms[t, side] += torch.bincount(bins[:, t], weights=weights * share, minlength=BINS)
            columns = (torch.ones_like(weights), labels[:, t], logits[:, t].sigmoid(), losses[:, t])
            self._sums[t] += torch.stack([(weights * column).sum() for column in columns])
        self._rows += (weights > 0).sum()

    def compute(self, ranks: Ranks) -> dict[str, float]:
        """Returns the metrics over all ranks' rows; with several labels, each name is followed by `/LABEL`."""
        histograms, sums, rows = (sum_over_ranks(x, ranks) for x in (self._histograms, self._sums, self._rows))
        result: dict[str, float] = {}
        for t, label in enumerate(self._labels):
            suffix = f"/{label}" if len(self._labels) > 1 else ""
            values = _metrics(histograms[t], *sums[t].tolist())
            result |= {f"{name}{suffix}": value for name, value in values.items()}
        return result | {"rows": rows.item()}


def _metrics(histogram: Tensor, weight: float, positive: float, predicted: float, loss: float) -> dict[str, float]:
    auc, auc_error = _auc(histogram[0], histogram[1])
    rate = _ratio(positive, weight)
    return {
        "auc": auc,
        "auc_error": auc_error,
        "normalized_entropy": _ratio(_ratio(loss, weight), _entropy(rate)),  # He et al., ADKDD 2014
        "log_loss": _ratio(loss, weight),
        "calibration": _ratio(predicted, positive),
        "label_rate": rate,
    }


def _auc(negative: Tensor, positive: Tensor) -> tuple[float, float]:
    below = negative.cumsum(0) - negative
    pairs = (positive.sum() * negative.sum()).item()
    ties = (positive * negative).sum().item() / 2
    return _ratio((positive * below).sum().item() + ties, pairs), _ratio(ties, pairs)


def _entropy(rate: float) -> float:
    if not 0 < rate < 1:
        return math.nan
    return -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
