"""Metrics of binary labels, weighted, in float64.

AUC, AUPRC and metrics at a threshold need the order of all predictions. Up to `COUNTED` different logits are counted
one by one, and these metrics are exact. More logits go into bins. Then two samples of one bin may be in either order,
and a threshold may lie inside a bin. `NAME_error` is the largest difference that bins can make to `NAME` on these
samples; it is 0 where the logits were counted.

The other metrics are ratios of sums over the samples.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from trainer.core.arrays import splitmix64
from trainer.core.distributed import DistributedContext, gather_to_all, sum_over_ranks
from trainer.metrics.base import Samples, Sums, ratio
from trainer.metrics.groups import exchange

COUNTED = 1 << 16
BINS = 1 << 16  # exact to 1e-7 for continuous predictions, where it was measured
BINS_OF_ONE = 2048  # a power of two, so that edges are exact: a logit of -1e-17 is below 0
RELIABILITY_BINS = 15  # as in Guo et al.
CURVE_BINS = 20  # of equally many samples, so that rare labels have as many bins as common ones


class OrderedWeights(NamedTuple):
    """Weights of negatives and positives of all ranks, by rising logit.

    Attributes:
        least: The least logit of each of `T` sets of samples, `[T]`.
        weights: Weights of the set's negatives and of its positives, `[2, T]`.
        exact: Whether the samples of a set have one logit; else the set is a bin.
    """

    least: Tensor
    weights: Tensor
    exact: bool


class LogitHistogram:
    """Weights of negatives and positives by logit, or by bins of the logit once there are more than `COUNTED` logits.

    Args:
        device: Device of the predictions.
    """

    def __init__(self, device: torch.device) -> None:
        self._rows = [torch.empty(0, 3, dtype=torch.float64, device=device)]  # logit, negative, positive
        self._bins: Tensor | None = None

    def add(self, samples: Samples) -> None:
        """Adds samples of this rank."""
        logits = samples.predictions + 0.0  # -0.0 becomes 0.0, which hashes as 0.0
        # A NaN prediction makes every metric NaN, unless its weight is 0.
        weights = samples.weights.masked_fill(logits.isnan() & (samples.weights > 0), math.nan)
        rows = torch.stack([logits, weights * (1 - samples.labels), weights * samples.labels], dim=1)
        if self._bins is not None:
            self._bins += _binned(rows)
            return
        self._rows.append(rows[samples.weights > 0])
        if sum(map(len, self._rows)) > 2 * COUNTED:
            self._merge()

    def total(self, context: DistributedContext) -> OrderedWeights:
        """Returns the weights of all ranks."""
        self._merge()
        counted = self._counted(context)
        return self._in_bins(context) if counted is None else counted

    def _counted(self, context: DistributedContext) -> OrderedWeights | None:
        """Returns the weights of every logit; None if all ranks together have more than `COUNTED` logits."""
        within = torch.tensor(self._bins is None, dtype=torch.float64)
        if sum_over_ranks(within, context) < context.world_size:
            return None
        (rows,) = self._rows
        owners = (splitmix64(rows[:, 0].contiguous().view(torch.int64)) & (2**32 - 1)) % context.world_size
        mine = _merged(exchange(rows, owners, context)).cpu()
        if sum_over_ranks(torch.tensor(float(len(mine))), context) > COUNTED:
            return None
        logits, *weights = _merged(torch.cat(gather_to_all(mine, context))).T
        return OrderedWeights(logits, torch.stack(weights), exact=True)

    def _in_bins(self, context: DistributedContext) -> OrderedWeights:
        bins = _binned(*self._rows) if self._bins is None else self._bins
        edges = (torch.arange(BINS, dtype=torch.float64) - BINS // 2) / BINS_OF_ONE
        edges[0] = -math.inf
        return OrderedWeights(edges, sum_over_ranks(bins, context), exact=False)

    def _merge(self) -> None:
        """Adds up rows of equal logits; too many different logits go into bins."""
        if self._bins is not None:
            return
        rows = _merged(torch.cat(self._rows))
        if len(rows) > COUNTED:
            self._bins, rows = _binned(rows), rows[:0]
        self._rows = [rows]


def _merged(rows: Tensor) -> Tensor:
    """Returns the summed weights of rows with equal logits, by rising logit."""
    logits, places = rows[:, 0].unique(return_inverse=True)
    sums = rows.new_zeros(len(logits), 2).index_add_(0, places, rows[:, 1:])
    return torch.cat([logits[:, None], sums], dim=1)


def _binned(rows: Tensor) -> Tensor:
    """Returns the sums of the weights in bins, `[2, BINS]`; the outermost take all logits beyond them."""
    bins = (rows[:, 0].clamp(-BINS, BINS) * BINS_OF_ONE).floor().long() + BINS // 2
    bins = bins.clamp(0, BINS - 1)
    sums = [torch.bincount(bins, weights=weights, minlength=BINS) for weights in rows[:, 1:].T]
    return torch.stack(sums).double()  # of no rows, they are integers


def auc(ordered: OrderedWeights) -> dict[str, float]:
    """Returns the area under the ROC curve."""
    negative, positive = ordered.weights
    below = negative.cumsum(0) - negative
    pairs = (positive.sum() * negative.sum()).item()
    ties = (positive * negative).sum().item() / 2
    return _bounded(ordered, ratio((positive * below).sum().item() + ties, pairs)[""], ratio(ties, pairs)[""])


def auprc(ordered: OrderedWeights) -> dict[str, float]:
    """Returns the area under the precision-recall curve: the mean over the positives of the precision at each.

    This is average precision, without interpolation between points (Davis and Goadrich, ICML 2006).
    """
    sets = ordered.weights.flip(1)  # by falling logit
    before, (_, found) = sets.cumsum(1) - sets, sets
    negative, positive = before + sets

    def area(precision: Tensor) -> float:
        return ratio(torch.where(found > 0, found * precision, 0).sum().item(), positive[-1:].sum().item())[""]

    value = area(positive / (positive + negative))
    # In one set the positives may all come first. Or they come last, one by one: then their mean precision is the mean
    # of (before + t) / (before + t + negative) over t from 0 to `found`.
    most = area(positive / (positive + before[0]))
    least = area(1 - torch.where(negative > 0, negative * (found / (before[1] + negative)).log1p() / found, 0))
    return _bounded(ordered, value, max(most - value, value - least, 0.0))


def accuracy(ordered: OrderedWeights, threshold: float) -> dict[str, float]:
    """Returns the share of samples on the right side of the threshold."""
    low, inside, high = _split(ordered, threshold)
    half, whole = sum(inside) / 2, ordered.weights.sum().item()
    return _bounded(ordered, ratio(low[0] + high[1] + half, whole)[""], ratio(half, whole)[""])


def precision(ordered: OrderedWeights, threshold: float) -> dict[str, float]:
    """Returns the share of positives among the samples at or above the threshold."""
    _, (negative, positive), high = _split(ordered, threshold)
    value = ratio(high[1] + positive / 2, sum(high) + (positive + negative) / 2)[""]
    extremes = ratio(high[1], sum(high) + negative)[""], ratio(high[1] + positive, sum(high) + positive)[""]
    errors = [abs(value - extreme) for extreme in extremes if not math.isnan(extreme)]
    return _bounded(ordered, value, max(errors, default=math.nan))


def recall(ordered: OrderedWeights, threshold: float) -> dict[str, float]:
    """Returns the share of the positives that are at or above the threshold."""
    _, (_, positive), high = _split(ordered, threshold)
    half, whole = positive / 2, ordered.weights[1].sum().item()
    return _bounded(ordered, ratio(high[1] + half, whole)[""], ratio(half, whole)[""])


def _split(ordered: OrderedWeights, threshold: float) -> list[list[float]]:
    """Returns the weights of negatives and positives below a probability, of the bin that it lies inside, and above."""
    logit = math.log(threshold) - math.log1p(-threshold)
    first = end = int(torch.searchsorted(ordered.least, logit))  # of the sets at or above the threshold
    if not ordered.exact and not (ordered.least[first:] == logit).any():
        end = first - 1
    return [part.sum(1).tolist() for part in ordered.weights.tensor_split([end, first], dim=1)]


def _bounded(ordered: OrderedWeights, value: float, error: float) -> dict[str, float]:
    """Returns a metric and the bound of the error that bins make."""
    if ordered.exact:
        error = 0.0
    return {"": value, "_error": math.nan if math.isnan(value) else error}


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
    """Returns the log loss over the log loss of always predicting the label rate (He et al., ADKDD 2014)."""
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


def calibration_curve(ordered: OrderedWeights) -> dict[str, list[float]]:
    """Returns the mean prediction, the mean label and the weight of bins of about equal weight, by rising prediction.

    It costs no pass over samples: it is made of what AUC is made of. Where logits are in bins, a prediction is that of
    the middle of its bin, which is off by 6e-5 at most.
    """
    there = ordered.weights.sum(0) > 0
    logits, (negative, positive) = ordered.least[there], ordered.weights[:, there]
    weights = negative + positive
    predicted = (logits if ordered.exact else logits + 0.5 / BINS_OF_ONE).sigmoid()
    places = ((weights.cumsum(0) - weights / 2) / weights.sum() * CURVE_BINS).long().clamp(max=CURVE_BINS - 1)
    sums = torch.zeros(3, CURVE_BINS, dtype=torch.float64)
    sums.index_add_(1, places, torch.stack([weights * predicted, positive, weights]))
    sums = sums[:, sums[2] > 0]
    found = {"predicted": sums[0] / sums[2], "observed": sums[1] / sums[2], "weight": sums[2]}
    return {name: values.tolist() for name, values in found.items()}


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
