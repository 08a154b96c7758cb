"""Samples by group: kept during an evaluation, and at its end brought together on one rank, group by group."""

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.core.distributed import DistributedContext
from trainer.core.splitmix import splitmix64
from trainer.metrics.base import Samples
from trainer.metrics.ranking import RankedGroups

HASH_BITS = 24  # of splitmix64; they choose the groups, the others the rank of each


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
        """Keeps the samples of this rank that weigh anything, and whose groups are chosen."""
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
    """Sends each row to its owner, and returns those that all ranks sent to this one."""
    counts = torch.bincount(owners, minlength=context.world_size)
    expected = torch.empty_like(counts)
    dist.all_to_all_single(expected, counts)
    received = rows.new_empty(int(expected.sum()), rows.shape[1])
    dist.all_to_all_single(received, rows[owners.argsort()], expected.tolist(), counts.tolist())
    return received
