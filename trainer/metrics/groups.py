"""Metrics of the ranking of a group's samples by their predictions, averaged over the groups of all ranks.

Samples are kept during an evaluation. At its end, all samples of a group are brought together on one rank.

Samples with equal predictions count as the mean over all their orders (McSherry and Najork, ECIR 2008): in an AUC, a
tied pair counts half. A sample is relevant if its label is above 0.
"""

from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.core.arrays import splitmix64
from trainer.core.distributed import DistributedContext, sum_over_ranks
from trainer.metrics.base import Samples, ratio

HASH_BITS = 24  # bits of splitmix64 that choose the groups; the other bits choose the rank of each group


class RankedGroups:
    """Samples of whole groups, `N`, ranked by falling score; `T` ties, which are sets of equal scores in a group.

    Args:
        groups: The group of each sample, `[N]`, in any order; no other rank has samples of these groups.
        scores: `[N]`.
        labels: `[N]` float64.
        weights: `[N]` float64, above 0.
        context: This process among the ranks.

    Attributes:
        labels: The labels, by rank.
        weights: The weights, by rank.
        group: The group that each tie is in, `[T]`, in `[0, G)`.
        size: Samples of each tie, `[T]`.
        above: Samples of its group that are ranked above each tie, `[T]`.
        tie: The tie that each sample is in, `[N]`, in `[0, T)`.
    """

    def __init__(
        self, groups: Tensor, scores: Tensor, labels: Tensor, weights: Tensor, context: DistributedContext
    ) -> None:
        order = scores.argsort(descending=True)
        order = order[groups[order].argsort(stable=True)]
        groups, scores, self.labels, self.weights = (values[order] for values in (groups, scores, labels, weights))
        self._context, self._groups = context, groups
        begins_group = changes(groups)
        begins_tie = begins_group | changes(scores)
        first = begins_tie.nonzero()[:, 0]
        self.tie = begins_tie.cumsum(0) - 1
        self.group = begins_group.cumsum(0)[first] - 1
        self.size = torch.bincount(self.tie)
        self.above = first - begins_group.nonzero()[:, 0][self.group]

    @cached_property
    def ideal(self) -> "RankedGroups":
        """The same samples, ranked by their labels."""
        return RankedGroups(self._groups, self.labels, self.labels, self.weights, self._context)

    @cached_property
    def relevant(self) -> Tensor:
        """Relevant samples of each tie, `[T]` float64."""
        return self.of_ties((self.labels > 0).double())

    def of_ties(self, values: Tensor) -> Tensor:
        """Returns the sums over each tie, `[T]`, of values of the samples, by rank."""
        return values.new_zeros(len(self.size)).index_add_(0, self.tie, values)

    def of_groups(self, values: Tensor) -> Tensor:
        """Returns the sums over each group, `[G]`, of values of the ties."""
        groups = int(self.group[-1]) + 1 if len(self.group) else 0
        return values.new_zeros(groups).index_add_(0, self.group, values)

    def mean(self, values: Tensor, weights: Tensor) -> dict[str, float]:
        """Returns the weighted mean of values of groups over all ranks, without groups of weight 0."""
        counted = weights > 0
        sums = torch.stack([(values * weights)[counted].sum(), weights.sum()])
        return ratio(*sum_over_ranks(sums, self._context).tolist())


class GroupedSamples:
    """The samples of an evaluation with their groups, 20 bytes each: group, score, label and weight.

    Args:
        device: Device of the predictions.
        fraction: Fraction of the groups to keep, chosen by hash, the same on any number of ranks.
    """

    def __init__(self, device: torch.device, fraction: float = 1.0) -> None:
        self._rows = [torch.empty(0, 5, dtype=torch.int32, device=device)]
        self._limit = fraction * 2**HASH_BITS

    def add(self, samples: Samples) -> None:
        """Keeps the samples of this rank with a weight above 0 whose groups are chosen."""
        assert samples.groups is not None
        kept = (samples.weights > 0) & (_chooser(samples.groups) < self._limit)
        groups, *columns = (
            column[kept] for column in (samples.groups, samples.scores, samples.labels, samples.weights)
        )
        bits = [column.float().view(torch.int32)[:, None] for column in columns]
        self._rows.append(torch.cat([groups.view(torch.int32).view(-1, 2), *bits], dim=1))

    def total(self, context: DistributedContext) -> RankedGroups:
        """Returns this rank's part of the groups, with the samples of all ranks."""
        rows = torch.cat(self._rows)
        self._rows = self._rows[:1]
        owners = (splitmix64(_groups(rows)) & (2 ** (64 - HASH_BITS) - 1)) % context.world_size
        rows = exchange(rows, owners, context)
        scores, labels, weights = (column.contiguous().view(torch.float32) for column in rows.T[2:])
        return RankedGroups(_groups(rows), scores, labels.double(), weights.double(), context)


def _chooser(groups: Tensor) -> Tensor:
    return (splitmix64(groups) >> (64 - HASH_BITS)) & (2**HASH_BITS - 1)


def _groups(rows: Tensor) -> Tensor:
    return rows[:, :2].reshape(-1).view(torch.int64)


def exchange(rows: Tensor, owners: Tensor, context: DistributedContext) -> Tensor:
    """Sends each row to its owner, and returns the rows that all ranks sent to this rank."""
    counts = torch.bincount(owners, minlength=context.world_size)
    expected = torch.empty_like(counts)
    dist.all_to_all_single(expected, counts)
    received = rows.new_empty(int(expected.sum()), rows.shape[1])
    dist.all_to_all_single(received, rows[owners.argsort()], expected.tolist(), counts.tolist())
    return received


def gauc(groups: RankedGroups) -> dict[str, float]:
    """Returns the mean AUC of the groups that have both classes."""
    aucs, weights = _aucs(groups)
    return groups.mean(aucs, (weights > 0).double())


def gauc_by_samples(groups: RankedGroups) -> dict[str, float]:
    """Returns the mean AUC of the groups that have both classes, by the weight of their samples (Zhu et al., 2017)."""
    return groups.mean(*_aucs(groups))


def ndcg(groups: RankedGroups, k: int) -> dict[str, float]:
    """Returns the mean discounted cumulative gain of the first k, over the greatest gain that the labels allow.

    A label is its own gain, and the discount of rank i is 1 / log2(i + 1) (Jarvelin and Kekalainen, TOIS 2002).
    """
    greatest = _gain(groups.ideal, k)
    return groups.mean(_gain(groups, k) / greatest, (greatest > 0).double())


def recall(groups: RankedGroups, k: int) -> dict[str, float]:
    """Returns the mean share of the relevant samples that are among the first k, over the groups that have one."""
    share = ((k - groups.above) / groups.size.double()).clamp(0, 1)
    relevant, found = groups.of_groups(groups.relevant), groups.of_groups(groups.relevant * share)
    return groups.mean(found / relevant, (relevant > 0).double())


def hit_rate(groups: RankedGroups, k: int) -> dict[str, float]:
    """Returns the share of groups with a relevant sample among the first k, of the groups that have one."""
    size, relevant, above = _first_relevant(groups)
    drawn = (k - above).clamp(min=0).minimum(size)  # of the tie, into the first k
    missed = (_log_choices(size - drawn, relevant) - _log_choices(size, relevant)).exp()
    return groups.mean(1 - missed, torch.ones_like(missed))


def mrr(groups: RankedGroups) -> dict[str, float]:
    """Returns the mean of one over the rank of the first relevant sample, over the groups that have one."""
    size, relevant, above = _first_relevant(groups)
    return groups.mean(_reciprocal_ranks(size, relevant, above), torch.ones_like(relevant))


def changes(values: Tensor) -> Tensor:
    """Returns where a value differs from the value before it, `[N]`; True for the first."""
    changed = torch.ones(len(values), dtype=torch.bool, device=values.device)
    changed[1:] = values[1:] != values[:-1]
    return changed


def _aucs(groups: RankedGroups) -> tuple[Tensor, Tensor]:
    """Returns the AUC and the weight of each group, `[G]` both: its samples' weight, or 0 if it lacks a class."""
    positive = groups.of_ties(groups.weights * groups.labels)
    negative = groups.of_ties(groups.weights * (1 - groups.labels))
    wrong = positive * (_sums_above(negative, groups.group) + negative / 2)
    positives, negatives = groups.of_groups(positive), groups.of_groups(negative)
    pairs = positives * negatives
    return 1 - groups.of_groups(wrong) / pairs, torch.where(pairs > 0, positives + negatives, 0)


def _sums_above(values: Tensor, group: Tensor) -> Tensor:
    """Returns for each tie the sum over those above it in its group, `[T]`, by Hillis and Steele's scan (1986)."""
    # A running sum over all groups would lose digits of small ones, and depend on which groups a rank has.
    sums, step = values.clone(), 1
    while step < len(values) and (same := group[step:] == group[:-step]).any():
        sums[step:] += torch.where(same, sums[:-step], 0)
        step *= 2
    return sums - values


def _gain(groups: RankedGroups, k: int) -> Tensor:
    """Returns the discounted cumulative gain of the first k of each group, `[G]`."""
    ranks = torch.arange(1, min(k, len(groups.labels)) + 1, dtype=torch.float64, device=groups.labels.device)
    discounts = torch.cat([ranks.new_zeros(1), (1 / (ranks + 1).log2()).cumsum(0)])  # [i]: of the first i together
    last = len(ranks)
    inside = discounts[(groups.above + groups.size).clamp(max=last)] - discounts[groups.above.clamp(max=last)]
    return groups.of_groups(groups.of_ties(groups.labels.clamp(min=0)) / groups.size * inside)


def _first_relevant(groups: RankedGroups) -> tuple[Tensor, Tensor, Tensor]:
    """Returns size, relevant samples and samples above of each group's first tie with a relevant sample."""
    found = (groups.relevant > 0).nonzero()[:, 0]
    found = found[changes(groups.group[found])]
    return groups.size[found], groups.relevant[found], groups.above[found]


def _reciprocal_ranks(size: Tensor, relevant: Tensor, above: Tensor) -> Tensor:
    """Returns the mean of one over the rank of the first relevant sample, over all orders of each tie."""
    tie = torch.arange(len(size), device=size.device).repeat_interleave(size)
    place = torch.arange(1, len(tie) + 1, device=size.device) - (size.cumsum(0) - size)[tie]  # in the tie, from 1
    chance = (_log_choices(size[tie] - place, relevant[tie] - 1) - _log_choices(size, relevant)[tie]).exp()
    return relevant.new_zeros(len(size)).index_add_(0, tie, chance / (above[tie] + place))


def _log_choices(n: Tensor, k: Tensor) -> Tensor:
    """Returns the logarithm of the number of ways to choose k of n; minus infinity if k is greater than n."""
    n, k = n.double(), k.double()
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
