"""The ids of a batch, on the ranks that give their rows."""

from collections.abc import Callable, Sequence

import numpy as np

from trainer.core.exchange import Exchange

Ids = tuple[np.ndarray, np.ndarray]
"""Distinct ids in ascending order, `[N]` int64, and how often each occurs, `[N]`."""


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
