"""`ids = "managed"`: an id gets a row when it is first seen, and may lose it to another one."""

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
SHARED = 0  # the row of all ids that have none of their own
IDS, LAST_USED, COUNTS = range(3)  # of a row: its id, the last step that used it, the samples' ids that it stood for
USED, EVICTED, OVERFLOWED = range(3)  # in totals: rows with an id; ids that lost theirs; ids of a batch that got none
# Ids per row of the table that halve the count of an id that is not among them, so that what was frequent once leaves.
# On streams of ids by Zipf's law, half of which or none were replaced by new ones, 8 to 30 kept the most ids in use.
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
        # Earlier runs wrote least_recent, then the default, to their config.toml whatever the ids.
        if self.ids != "managed" and self.evict == "least_used":
            raise InputError(
                f"{key}.evict is '{self.evict}', but {key}.ids is '{self.ids}', which "
                "evicts nothing; leave it out or set ids to 'managed'"
            )


class Managed(IdRule):
    """Cuts ids to 63 bits, as those below 0 are no ids; they get their rows from a `RowMap`, once per global batch.

    Attributes:
        ids_of_rows: The id of each row in a checkpoint, `[R]`, which an export needs.
    """

    takes_strings = True
    lists_ids = True
    ids_of_rows: np.ndarray

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns ids, which rows come later for."""
        return ids.astype(np.int64) & np.iinfo(np.int64).max

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the ids with a row of their own, sorted, and their rows."""
        rows = own_rows(self.ids_of_rows)
        if not len(rows):  # an id that no client can send: they are at least 0
            return {"keys": np.array([FREE]), "rows": np.array([SHARED])}
        order = self.ids_of_rows[rows].argsort(kind="stable")
        return {"keys": self.ids_of_rows[rows][order], "rows": rows[order]}

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the rows of ids; those without one share a row."""
        ids = ids & (2**63 - 1)
        return look_up(ids, arrays, ids.new_full(ids.shape, SHARED))


def own_rows(ids: np.ndarray) -> np.ndarray:
    """Returns the rows that belong to one id each, for the id of each row, `[R]`."""
    rows = np.flatnonzero(ids != FREE)
    return rows[rows != SHARED]


@dataclass(frozen=True)
class Change:
    """The change that the ids of a step make to a row map.

    Attributes:
        rows: Rows that change, `[K]`.
        before: Their state before it, `[3, K]`.
        after: Their state after it, `[3, K]`.
        evicted: Those of the rows that another id had, `[E]`.
        totals_before: Totals before it, `[3]`.
        totals: Totals after it, `[3]`.
    """

    rows: np.ndarray
    before: np.ndarray
    after: np.ndarray
    evicted: np.ndarray
    totals_before: np.ndarray
    totals: np.ndarray


class RowMap:
    """The rows of a table's ids; takes 24 bytes a row, and 12 for each row that is in use.

    Row 0 is shared by ids that have no row of their own: in training the surplus of a batch that has more distinct ids
    than the table has rows, in evaluation all that are not in the table.

    Args:
        rows: Rows of the table.
        evict: Whose row a new id gets when none is free: least_used takes that of the rarest id, least_recent that of
            the id that was used the longest ago; of equal ones by the other rule, and then the first row.

    Attributes:
        evict: As above.
        state: Id, last step and count of each row, `[3, R]` int64.
        totals: Rows in use, evictions, and ids that got no row, summed over steps, `[3]` int64.
    """

    def __init__(self, rows: int, evict: str) -> None:
        self.evict = evict
        self.state = np.zeros((3, rows), np.int64)
        self.state[IDS] = FREE
        self.totals = np.zeros(3, np.int64)
        self._index: tuple[np.ndarray, np.ndarray] | None = None

    def forget_index(self) -> None:
        """Makes the next lookup sort the ids again. Call this after a change of `state` or `totals`."""
        self._index = None

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of ids, `[N]` int64 to `[N]` int32, SHARED for one without a row."""
        known, rows = self._sorted()
        if not len(known):
            return np.zeros(len(ids), np.int32)
        places = np.searchsorted(known, ids)
        places[places == len(known)] = 0
        return np.where(known[places] == ids, rows[places], np.int32(SHARED))

    def update(self, ids: np.ndarray, counts: np.ndarray, step: int) -> Change:
        """Gives ids their rows.

        Args:
            ids: The distinct ids of a global batch in ascending order, `[N]` int64; so nothing depends on the ranks.
            counts: How often each occurs in it, `[N]`.
            step: Number of the step.
        """
        rows, seen = self.rows_of(ids), int(counts.sum())
        known = rows != SHARED
        order = np.lexsort((ids[~known], -counts[~known]))  # the most frequent first: the last ones may get no row
        new, new_counts = ids[~known][order], counts[~known][order]
        free = np.arange(self.totals[USED] + 1, min(self.totals[USED] + 1 + len(new), self.state.shape[1]))
        evicted = self._evicted(rows[known], len(new) - len(free), step, seen)
        given = np.append(free, evicted).astype(np.int64)
        new, new_counts, overflowed = new[: len(given)], new_counts[: len(given)], len(new) - len(given)

        touched = np.concatenate([rows[known], given])
        before = self.state[:, touched]
        after = np.stack(
            [
                np.concatenate([ids[known], new]),
                np.full(len(touched), step),
                np.concatenate([self._counts(rows[known], step, seen) + counts[known], new_counts]),
            ]
        )
        totals = self.totals + np.array([len(free), len(evicted), overflowed])
        change = Change(touched, before, after, evicted, self.totals.copy(), totals)
        self._reindex(self.state[IDS, evicted], new, given)
        self._write(touched, after, totals)
        return change

    def undo(self, change: Change) -> None:
        """Goes back to before the latest change."""
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
        """Returns the counts of rows in a step with `seen` ids, halved by `HALF_LIFE` since their ids were used."""
        passed = (step - self.state[LAST_USED, rows]) * seen  # as if all steps had as many
        return self.state[COUNTS, rows] >> np.minimum(passed // (HALF_LIFE * self.state.shape[1]), 63)

    def _evicted(self, used: np.ndarray, number: int, step: int, seen: int) -> np.ndarray:
        """Returns at most `number` rows to take from their ids. Rows that this step uses stay."""
        idle = np.ones(self.totals[USED] + 1, bool)
        idle[SHARED], idle[used] = False, False
        rows = np.flatnonzero(idle)
        number = min(number, len(rows))
        if number <= 0:
            return rows[:0]
        # By the value of the last one and not by np.argpartition, which leaves open which of equal ones it takes.
        first, second = self._counts(rows, step, seen), self.state[LAST_USED, rows]
        if self.evict == "least_recent":
            first, second = second, first
        last = np.partition(first, number - 1)[number - 1]
        sure, tied = rows[first < last], rows[first == last]
        tied = tied[second[first == last].argsort(kind="stable")]
        return np.sort(np.concatenate([sure, tied[: number - len(sure)]]))

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns all ids in ascending order, and their rows."""
        if self._index is None:
            ids = self.state[IDS, 1 : self.totals[USED] + 1]
            order = ids.argsort(kind="stable")
            self._index = ids[order], (order + 1).astype(np.int32)
        return self._index

    def _reindex(self, gone: np.ndarray, new: np.ndarray, rows: np.ndarray) -> None:
        """Takes ids out of the index and puts others in; to sort all of them again would take ten times as long."""
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
