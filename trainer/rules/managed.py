"""`ids = "managed"`: an id gets a row when first seen, and may lose the row to another id."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from trainer.core.errors import InputError
from trainer.core.section import MayChange
from trainer.rules.base import IdRule, SparseKeys
from trainer.rules.vocabulary import look_up

if TYPE_CHECKING:
    from torch import Tensor

FREE = -1  # in place of an id; ids are at least 0
LET_GO = -1  # in place of the count of a free row whose weights are those of an earlier id
SHARED = 0  # the row of all ids without a row of their own
IDS, LAST_USED, COUNTS = range(3)  # of a row: the id, the last step that used the id, its occurrences in samples
USED, EVICTED, OVERFLOWED = range(3)  # in totals: rows with an id; ids that lost a row; ids of a batch without a row
# Seen ids per row of the table that halve the count of an absent id, so that ids which were frequent once leave.
# On streams of ids by Zipf's law, with half or none of the ids replaced by new ids, 8 to 30 kept the most ids in use.
HALF_LIFE = 16


class ManagedKeys(SparseKeys):
    """The keys of this rule."""

    evict: Annotated[Literal["least_used", "least_recent"] | None, MayChange] = None
    """For ids = "managed": the id whose row a new one gets when all are in use. Unset: that of the run so far,
    least_used for a new run."""

    def check_managed(self, key: str) -> None:
        """Refuses a table with too few rows, and keys that other rules do not read."""
        if self.ids == "managed" and self.rows < 2:
            raise InputError(f"{key}.rows is {self.rows}; managed ids need one for unseen ids and one more")
        # Earlier runs wrote least_recent, then the default, to config.toml for all rules.
        if self.ids != "managed" and self.evict == "least_used":
            raise InputError(
                f"{key}.evict is '{self.evict}', but {key}.ids is '{self.ids}', which "
                "evicts nothing; leave it out or set ids to 'managed'"
            )


class Managed(IdRule):
    """Cuts ids to 63 bits, as negative numbers are no ids. A `RowMap` gives rows to ids, once per global batch.

    Attributes:
        ids_of_rows: The id of each row in a checkpoint, `[R]`, for an export.
    """

    takes_strings = True
    lists_ids = True
    ids_of_rows: np.ndarray

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns ids, which get rows later."""
        return ids.astype(np.int64) & np.iinfo(np.int64).max

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the ids with a row of their own, sorted, and their rows; both as long as the table, whatever is free.

        So the export of a day has the shapes of the day before, and can be its changes.
        """
        rows = own_rows(self.ids_of_rows)
        order = self.ids_of_rows[rows].argsort(kind="stable")
        # The last id again and again, of which a search finds the first; without ids, one that no client can send.
        padding = max(1, len(self.ids_of_rows)) - len(rows)
        last_id, last_row = (self.ids_of_rows[rows][order[-1]], rows[order[-1]]) if len(rows) else (FREE, SHARED)
        return {
            "keys": np.append(self.ids_of_rows[rows][order], np.full(padding, last_id)),
            "rows": np.append(rows[order], np.full(padding, last_row)),
        }

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the rows of ids; ids without a row share one."""
        ids = ids & (2**63 - 1)
        return look_up(ids, arrays, ids.new_full(ids.shape, SHARED))


def own_rows(ids: np.ndarray) -> np.ndarray:
    """Returns the rows with an id of their own, given the id of each row, `[R]`."""
    rows = np.flatnonzero(ids != FREE)
    return rows[rows != SHARED]


@dataclass(frozen=True)
class Change:
    """The change of a row map by the ids of a step.

    Attributes:
        rows: Rows that change, `[K]`.
        before: State of the rows before the change, `[3, K]`.
        after: State after the change, `[3, K]`.
        evicted: The rows given that another id had, `[E]`, whose weights start over.
        totals_before: Totals before, `[3]`.
        totals: Totals after, `[3]`.
    """

    rows: np.ndarray
    before: np.ndarray
    after: np.ndarray
    evicted: np.ndarray
    totals_before: np.ndarray
    totals: np.ndarray


class RowMap:
    """The rows of a table's ids; takes 24 bytes per row, and 12 more per row in use.

    Ids without a row of their own share row 0: in training the surplus of a batch with more distinct ids than the
    table has rows, in evaluation all ids that are not in the table.

    Args:
        rows: Rows of the table.
        evict: Whose row a new id gets if no row is free: least_used takes the row of the rarest id, least_recent of
            the id unused for longest. The other rule breaks ties, then the lowest row.

    Attributes:
        evict: As above.
        state: Id, last step and count of each row, `[3, R]` int64.
        totals: Rows in use, evictions, and ids without a row, summed over steps, `[3]` int64.
    """

    def __init__(self, rows: int, evict: str) -> None:
        self.evict = evict
        self.state = np.zeros((3, rows), np.int64)
        self.state[IDS] = FREE
        self.totals = np.zeros(3, np.int64)
        self._index: tuple[np.ndarray, np.ndarray] | None = None
        self._holes: np.ndarray | None = None  # the rows that were let go, ascending

    def forget_index(self) -> None:
        """Makes the next lookup sort the ids again. Call this after changing `state` or `totals`."""
        self._index = self._holes = None

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of ids, `[N]` int64 to `[N]` int32, SHARED for ids without a row."""
        known, rows = self._sorted()
        if not len(known):
            return np.zeros(len(ids), np.int32)
        places = np.searchsorted(known, ids)
        places[places == len(known)] = 0
        return np.where(known[places] == ids, rows[places], np.int32(SHARED))

    def update(self, ids: np.ndarray, counts: np.ndarray, step: int, unused_since: int | None = None) -> Change:
        """Gives rows to ids.

        Args:
            ids: The distinct ids of a global batch in ascending order, `[N]` int64; so nothing depends on the ranks.
            counts: Occurrences of each id in the batch, `[N]`.
            step: Number of the step.
            unused_since: Other ids whose last step is this or earlier lose their rows; from the next step on these can
                be given. Unset: they keep them.
        """
        rows, seen = self.rows_of(ids), int(counts.sum())
        known = rows != SHARED
        order = np.lexsort((ids[~known], -counts[~known]))  # the most frequent first: the last may get no row
        new, new_counts = ids[~known][order], counts[~known][order]
        holes, top = self._rows_let_go(), self._top()
        let_go = self._unused(rows[known], unused_since)
        again = holes[: len(new)]
        free = np.arange(top + 1, min(top + 1 + len(new) - len(again), self.state.shape[1]))
        busy = np.concatenate([rows[known], let_go])
        evicted = self._evicted(busy, len(new) - len(again) - len(free), step, seen)
        given = np.concatenate([again, free, evicted]).astype(np.int64)
        new, new_counts, overflowed = new[: len(given)], new_counts[: len(given)], len(new) - len(given)

        touched = np.concatenate([rows[known], given, let_go])
        before = self.state[:, touched]
        nothing = np.zeros(len(let_go), np.int64)
        after = np.stack(
            [
                np.concatenate([ids[known], new, nothing + FREE]),
                np.concatenate([np.full(len(touched) - len(let_go), step), nothing]),
                np.concatenate([self._counts(rows[known], step, seen) + counts[known], new_counts, nothing + LET_GO]),
            ]
        )
        more = len(again) + len(free) - len(let_go)
        totals = self.totals + np.array([more, len(evicted) + len(let_go), overflowed])
        change = Change(touched, before, after, np.append(again, evicted), self.totals.copy(), totals)
        self._reindex(self.state[IDS, np.append(evicted, let_go)], new, given)
        self._write(touched, after, totals)
        if len(again) or len(let_go):
            self._holes = np.union1d(holes[len(again) :], let_go)
        return change

    def undo(self, change: Change) -> None:
        """Undoes the latest change."""
        self._write(change.rows, change.before, change.totals_before)
        self.forget_index()

    def redo(self, change: Change) -> None:
        """Makes a change again."""
        self._write(change.rows, change.after, change.totals)
        self.forget_index()

    def _write(self, rows: np.ndarray, state: np.ndarray, totals: np.ndarray) -> None:
        self.state[:, rows] = state
        self.totals[:] = totals

    def _counts(self, rows: np.ndarray, step: int, seen: int) -> np.ndarray:
        """Returns the counts of rows in a step with `seen` ids, halved by `HALF_LIFE` since the last use of the ids."""
        passed = (step - self.state[LAST_USED, rows]) * seen  # as if all steps had `seen` ids
        return self.state[COUNTS, rows] >> np.minimum(passed // (HALF_LIFE * self.state.shape[1]), 63)

    def _evicted(self, used: np.ndarray, number: int, step: int, seen: int) -> np.ndarray:
        """Returns at most `number` rows to take from their ids, without rows that this step uses."""
        idle = np.ones(self._top() + 1, bool)
        idle[SHARED], idle[used], idle[self._rows_let_go()] = False, False, False
        rows = np.flatnonzero(idle)
        number = min(number, len(rows))
        if number <= 0:
            return rows[:0]
        # By the value of the last row and not by np.argpartition, whose choice among equal values is undefined.
        first, second = self._counts(rows, step, seen), self.state[LAST_USED, rows]
        if self.evict == "least_recent":
            first, second = second, first
        last = np.partition(first, number - 1)[number - 1]
        sure, tied = rows[first < last], rows[first == last]
        tied = tied[second[first == last].argsort(kind="stable")]
        return np.sort(np.concatenate([sure, tied[: number - len(sure)]]))

    def _unused(self, used: np.ndarray, since: int | None) -> np.ndarray:
        """Returns the rows of the ids whose last step is `since` or earlier, without rows that this step uses."""
        if since is None:
            return np.zeros(0, np.int64)
        state = self.state[:, : self._top() + 1]
        idle = (state[IDS] != FREE) & (state[LAST_USED] <= since)
        idle[SHARED], idle[used] = False, False
        return np.flatnonzero(idle)

    def _rows_let_go(self) -> np.ndarray:
        """Returns the rows that were let go and not given again, ascending."""
        if self._holes is None:
            self._holes = np.flatnonzero(self.state[COUNTS] == LET_GO)
        return self._holes

    def _top(self) -> int:
        """Returns the last row that was ever given."""
        return int(self.totals[USED]) + len(self._rows_let_go())

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns all ids in ascending order, and their rows."""
        if self._index is None:
            rows = own_rows(self.state[IDS])
            order = self.state[IDS, rows].argsort(kind="stable")
            self._index = self.state[IDS, rows][order], rows[order].astype(np.int32)
        return self._index

    def _reindex(self, gone: np.ndarray, new: np.ndarray, rows: np.ndarray) -> None:
        """Takes ids out of the index and puts others in. Sorting all ids again would take ten times as long."""
        known, rows_of_known = self._sorted()
        if len(gone):
            places = np.searchsorted(known, gone)
            known, rows_of_known = np.delete(known, places), np.delete(rows_of_known, places)
        if len(new):
            order = new.argsort()
            places = np.searchsorted(known, new[order])
            known = np.insert(known, places, new[order])
            rows_of_known = np.insert(rows_of_known, places, rows[order].astype(np.int32))
        self._index = known, rows_of_known
