"""The exchange of managed ids: ids go to the ranks that assign rows, rows come back, resets go to the rows' holders."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torchrec.distributed.types import ParameterSharding

from trainer.core.arrays import places_in_groups
from trainer.core.distributed import DistributedContext, background_group
from trainer.plan.sharding_plan import shards_of

Ids = tuple[np.ndarray, np.ndarray]
"""Distinct ids in ascending order, `[N]` int64, and how often each occurs, `[N]`."""


class Exchange:
    """Sends each rank its part of an array; all ranks call the same methods in the same order.

    Args:
        context: This process among the ranks.

    Attributes:
        ranks: Number of ranks.
    """

    def __init__(self, context: DistributedContext) -> None:
        self.ranks = context.world_size
        self._group = background_group(context) if context.world_size > 1 else None

    def rows(self, sent: np.ndarray, to: np.ndarray | None = None, come: np.ndarray | None = None) -> np.ndarray:
        """Sends rows, and returns those that came from the ranks, in the order of the ranks.

        Args:
            sent: The rows in the order of the ranks that they are for, `[K, C]` int64.
            to: Rows for each rank, `[ranks]`. Unset: the same number for each.
            come: Rows that come from each rank, `[ranks]`. Unset: as many as are sent.
        """
        if self._group is None:
            return sent
        found = torch.empty((len(sent) if come is None else int(come.sum()), sent.shape[1]), dtype=torch.int64)
        sizes = [None if one is None else one.tolist() for one in (come, to)]
        dist.all_to_all_single(found, torch.from_numpy(np.ascontiguousarray(sent)), *sizes, group=self._group)
        return found.numpy()

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum over all ranks of an array of int64."""
        if self._group is None:
            return values
        total = torch.from_numpy(values.copy())
        dist.all_reduce(total, group=self._group)
        return total.numpy()


class IdRequests:
    """Sends the distinct ids of a batch to the ranks that give their rows, and their rows back.

    Args:
        exchange: Sends to other ranks.
        ids: The ids of this rank's batch for each table, `[N]` int64.
        rank_of: Returns the ranks that give rows to ids, for each table.
        note: Numbers for every rank, `[C]`.

    Attributes:
        arrived: The distinct ids of the batches of all ranks that this rank gives rows to, for each table.
        seen: Occurrences of all ids of each table in the batches of all ranks, `[tables]`.
        notes: The notes of all ranks, `[ranks, C]`.
    """

    def __init__(
        self,
        exchange: Exchange,
        ids: Sequence[np.ndarray],
        rank_of: Sequence[Callable[[np.ndarray], np.ndarray]],
        note: np.ndarray,
    ) -> None:
        self._exchange, ranks, tables = exchange, exchange.ranks, len(ids)
        found = [np.unique(one, return_inverse=True, return_counts=True) for one in ids]
        self._inverse = [inverse for _, inverse, _ in found]
        self._ends = np.cumsum([len(one) for one, _, _ in found])
        # Ordered by rank, and by table for each rank.
        ranks_of = [of(one) for of, (one, _, _) in zip(rank_of, found, strict=True)]
        groups = np.concatenate([one * tables + table for table, one in enumerate(ranks_of)])
        self._order = groups.argsort(kind="stable")
        numbers = np.bincount(groups, minlength=ranks * tables).reshape(ranks, tables)
        here = np.concatenate([[len(one) for one in ids], note])
        heads = exchange.rows(np.concatenate([numbers, np.tile(here, (ranks, 1))], 1))
        come, seen, self.notes = np.split(heads, [tables, 2 * tables], axis=1)
        self.seen = seen.sum(0)
        self._to, self._come = numbers.sum(1), come.sum(1)

        ours = np.concatenate([np.stack([one, counts], 1) for one, _, counts in found])[self._order]
        others = exchange.rows(ours, self._to, self._come)
        tables_of = np.repeat(np.tile(np.arange(tables), ranks), come.reshape(-1))
        self._by_table = tables_of.argsort(kind="stable")
        parts = np.split(others[self._by_table], come.sum(0).cumsum()[:-1])
        joined = [np.unique(part[:, 0], return_inverse=True) for part in parts]
        self._joined = [inverse for _, inverse in joined]
        self.arrived: list[Ids] = [
            (one, np.bincount(inverse, part[:, 1], len(one)).astype(np.int64))  # as float64, exact up to 2^53
            for (one, inverse), part in zip(joined, parts, strict=True)
        ]

    def rows(self, given: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the rows of the ids of this rank's batch for each table, `[N]`.

        Args:
            given: The rows of the ids that arrived, for each table.
        """
        answers = np.empty((len(self._by_table), 1), np.int64)
        answers[self._by_table, 0] = np.concatenate([one[at] for one, at in zip(given, self._joined, strict=True)])
        rows = np.empty(len(self._order), np.int64)
        rows[self._order] = self._exchange.rows(answers, self._come, self._to)[:, 0]
        parts = np.split(rows, self._ends[:-1])
        return [part[inverse] for part, inverse in zip(parts, self._inverse, strict=True)]


class RowHolders:
    """The ranks that hold the rows of a table; of a row several, if it is cut into columns or every rank holds it.

    Args:
        table: The placement of the table.
        rows: Rows of the table.
        ranks: Number of ranks.
    """

    def __init__(self, table: ParameterSharding, rows: int, ranks: int) -> None:
        shards = [
            (shard.shard_offsets[0], shard.shard_offsets[0] + shard.shard_sizes[0], shard.placement.rank())  # pyrefly: ignore[missing-attribute]
            for shard in shards_of(table)
        ]
        # Each once, as a rank can hold several of the columns.
        self._first, self._end, self._ranks = np.unique(shards or [(0, rows, n) for n in range(ranks)], axis=0).T

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ranks, `[K]`, and the rows among `[N]` that they hold, `[K]`; a row comes once for each rank."""
        rows = np.sort(rows)
        start, stop = np.searchsorted(rows, self._first), np.searchsorted(rows, self._end)
        numbers = stop - start
        return np.repeat(self._ranks, numbers), rows[np.repeat(start, numbers) + places_in_groups(numbers)]
