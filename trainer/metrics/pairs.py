"""Metrics of pairs of samples of different labels, and whether their predictions are in the order of the labels.

The labels are values, such as seconds watched. A pair of equal predictions counts half, so that labels of 0 and 1 would
give an AUC. Every pair is counted: TorchRec's XAUC compares the samples of a batch only, and that of TorchEasyRec a
thousandth of all pairs, by chance.
"""

import torch
from torch import Tensor

from trainer.metrics.base import Samples
from trainer.metrics.groups import GroupedSamples, RankedGroups, changes


class AllSamples(GroupedSamples):
    """The samples of an evaluation as one group, 20 bytes each."""

    def add(self, samples: Samples) -> None:
        """Keeps the samples of this rank with a weight above 0."""
        super().add(samples._replace(groups=torch.zeros_like(samples.labels, dtype=torch.int64)))


def xauc(samples: RankedGroups) -> dict[str, float]:
    """Returns the share of pairs whose predictions are in the order of their labels (Zhan et al., KDD 2022)."""
    return grouped_xauc(samples)


def grouped_xauc(groups: RankedGroups) -> dict[str, float]:
    """Returns the mean share of a group's pairs whose predictions are in the order of their labels."""
    pairs = (groups.of_groups(groups.of_ties(groups.weights)).square() - _of_equal_labels(groups)) / 2
    return groups.mean((1 + _right_less_wrong(groups) / pairs) / 2, (pairs > 0).double())


def _of_equal_labels(groups: RankedGroups) -> Tensor:
    """Returns the products of weights of samples of equal labels, each sample with itself and others, `[G]`."""
    labels = groups.ideal
    return labels.of_groups(labels.of_ties(labels.weights).square())


def _right_less_wrong(groups: RankedGroups) -> Tensor:
    """Returns the weight of the pairs in the order of their labels, less that of those in the other order, `[G]`.

    Two samples of a group have ranks whose first different bit says which of them has the higher score. So for each
    bit, from the highest on, samples are in blocks of equal higher bits, by label in each block, and for every sample
    with a 1 those with a 0 are counted, of smaller and of greater labels. Then each block is divided by the bit, in two
    of the same order: n samples take about n log(n) steps, where a comparison of all pairs takes n^2.
    """
    group = groups.group[groups.tie]
    rank = groups.tie - changes(groups.group).nonzero()[:, 0][group]  # in its group; equal scores have one rank
    found = groups.of_groups(torch.zeros_like(groups.size, dtype=torch.float64))
    order = groups.labels.argsort()
    order = order[group[order].argsort(stable=True)]
    columns = [values[order] for values in (group, rank, groups.labels, groups.weights)]
    for bit in reversed(range(int(rank.max()).bit_length() if len(rank) else 0)):
        group, rank, labels, weights = columns
        is_low = (rank >> bit & 1).bool()
        begins_block = changes(group) | changes(rank >> bit + 1)
        begins_label = begins_block | changes(labels)
        block, label = begins_block.cumsum(0) - 1, begins_label.cumsum(0) - 1
        high = _sums_before(torch.where(is_low, 0, weights))
        start, end = _ends(begins_block)
        first, last = _ends(begins_label)
        less = high[first][label] - high[start][block]
        greater = high[end][block] - high[last][label]
        found.index_add_(0, group, torch.where(is_low, weights * (greater - less), 0))
        zeros = _sums_before((~is_low).long())
        above = zeros[:-1] - zeros[start][block]  # zeros of its block before each sample
        below = torch.arange(len(rank), device=rank.device) + (zeros[end] - zeros[start])[block] - above
        place = torch.where(is_low, below, start[block] + above)
        columns = [torch.empty_like(values).index_copy_(0, place, values) for values in columns]
    return found


def _sums_before(values: Tensor) -> Tensor:
    """Returns the sums of the first i values, `[N + 1]`."""
    return torch.cat([values.new_zeros(1), values.cumsum(0)])


def _ends(begins: Tensor) -> tuple[Tensor, Tensor]:
    """Returns where each run of samples begins and ends, given which samples begin one."""
    first = begins.nonzero()[:, 0]
    return first, torch.cat([first[1:], first.new_tensor([len(begins)])])
