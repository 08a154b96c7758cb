"""The row map of managed ids: gives rows of a table to ids and takes them back, batch by batch."""

from dataclasses import dataclass

import numpy as np

from trainer.core.arrays import places_in_groups
from trainer.extensions.managed_ids.blocks import Blocks
from trainer.extensions.managed_ids.eviction import (
    COUNTS,
    HELD,
    IDS,
    IN_USE,
    LAST_USED,
    LET_GO,
    NEVER,
    UNTOUCHED,
    RowChoice,
)
from trainer.rules.managed import FREE, SHARED

USED, EVICTED, OVERFLOWED = range(3)  # totals: rows with an id; ids that lost a row; ids of a batch without a row
NOWHERE = -1  # place of an id without a row
RECENT, RECENT_SHARE = 4096, 8  # new ids are kept apart up to this number, or to this part of the others
# Seen ids per row of the table that halve the count of an absent id, so that ids which were frequent once leave.
# On streams of ids by Zipf's law, with half or none of the ids replaced by new ids, 8 to 30 kept the most ids in use.
HALF_LIFE = 16
LET_GO_STATE = np.array([[FREE], [0], [LET_GO]])  # of a row whose id was let go
LARGEST = (1 << 31) - 1  # largest count that still makes a difference in the choice of rows, and largest step


@dataclass(frozen=True)
class Change:
    """The change of a row map by the ids of a step.

    Attributes:
        places: Where the state changes, `[K]`.
        before: State there before the change, `[3, K]`.
        after: State after the change, `[3, K]`.
        evicted: The rows given that another id had, `[E]`, whose weights start over.
        gained: Change of the totals, `[3]`.
    """

    places: np.ndarray
    before: np.ndarray
    after: np.ndarray
    evicted: np.ndarray
    gained: np.ndarray


class RowMap:
    """The rows of the ids of some blocks; takes 24 bytes per row, and 12 more per row in use.

    Ids without a row of their own share row 0: in training the surplus of a batch with more distinct ids in a block
    than it has rows, in evaluation all ids that are not in the table.

    Args:
        blocks: The blocks of the table.
        evict: Whose row a new id gets if no row of its block is free: least_used takes the row of the rarest id,
            least_recent of the id unused for longest. The other rule breaks ties, then the lowest row.
        part: The part of the blocks whose rows this map has.
        parts: Number of parts.

    Attributes:
        blocks: As above.
        evict: As above.
        state: Id, last step and count of each of these rows, `[3, R]` int64; a row's column is its place. It may be
            filled before the first call.
        totals: Rows in use, evictions, and ids without a row, summed over steps, `[3]` int64.
    """

    def __init__(self, blocks: Blocks, evict: str, part: int = 0, parts: int = 1) -> None:
        self.blocks, self.evict = blocks, evict
        self._part = blocks.part(part, parts)
        self.state = np.zeros((3, self._part.size), np.int64)
        self.state[IDS] = FREE
        self.totals = np.zeros(3, np.int64)
        self._places, self._choice = Places(self.state[IDS]), RowChoice(self._part, self.state)

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of ids of these blocks, `[N]` int64 to `[N]` int64, SHARED for ids without a row."""
        places = self._places.of(ids)
        return np.where(places == NOWHERE, SHARED, self._part.rows_at(places))

    def counts_of(self, ids: np.ndarray, step: int, seen: int) -> np.ndarray:
        """Returns the counts of ids before a step with `seen` ids, `[N]` int64, 0 for ids without a row."""
        places = self._places.of(ids)
        return np.where(places == NOWHERE, 0, self._aged(self.state[:, places], step, seen))

    def update(
        self, ids: np.ndarray, counts: np.ndarray, step: int, seen: int, unused_since: int | None = None
    ) -> Change:
        """Gives rows to ids.

        Args:
            ids: The distinct ids of a global batch in these blocks, ascending, `[N]` int64.
            counts: Occurrences of each id in the batch, `[N]`.
            step: Number of the step.
            seen: Occurrences of all ids of the table in the batch.
            unused_since: Other ids whose last step is this or earlier lose their rows; from the next step on these can
                be given. Unset: they keep them.
        """
        places = self._places.of(ids)
        known = places != NOWHERE
        used, before_used = places[known], self.state[:, places[known]]
        self.state[COUNTS, used] = self._aged(before_used, step, seen) + counts[known]
        self.state[LAST_USED, used] = step

        let_go, blocks = self._unused(unused_since), self._part.blocks_of(ids)
        order = np.flatnonzero(~known)  # of the new ids, the most frequent of a block first: the last may get no row
        order = order[np.lexsort((ids[order], -counts[order], blocks[order]))]
        asking, wanted = np.unique(blocks[order], return_counts=True)
        given, kinds, numbers = self._choice.choose(
            asking, wanted, lambda state: self._turns(state, step, seen), let_go
        )
        new = order[places_in_groups(wanted) < np.repeat(numbers, wanted)]

        rest, touched = np.append(given, let_go), np.concatenate([used, given, let_go])
        before = np.concatenate([before_used, self.state[:, rest]], 1)
        self.state[:, given] = ids[new], np.full(len(new), step), counts[new]
        self.state[:, let_go] = LET_GO_STATE
        self._places.add(ids[new], given)
        if len(let_go):
            self._choice.forget()

        taken = int((kinds == IN_USE).sum())
        gained = np.array([len(given) - taken - len(let_go), taken + len(let_go), len(order) - len(new)])
        self.totals += gained
        evicted = self._part.rows_at(given[kinds != UNTOUCHED])
        return Change(touched, before, self.state[:, touched], evicted, gained)

    def release(self, ids: np.ndarray) -> Change:
        """Takes the rows of ids, which other ids can have at once. Ids without a row stay as they are."""
        places = self._places.of(ids)
        places = places[places != NOWHERE]
        before, gained = self.state[:, places], np.array([-len(places), 0, 0])
        self.state[:, places] = LET_GO_STATE
        self.totals += gained
        self._choice.forget()
        return Change(places, before, self.state[:, places], places[:0], gained)

    def undo(self, change: Change) -> None:
        """Undoes the latest change."""
        self._write(change.places, change.before, -change.gained)

    def redo(self, change: Change) -> None:
        """Makes a change again."""
        self._write(change.places, change.after, change.gained)

    def _write(self, places: np.ndarray, state: np.ndarray, gained: np.ndarray) -> None:
        self.state[:, places] = state
        self.totals += gained
        has_id = state[IDS] != FREE
        self._places.add(state[IDS, has_id], places[has_id])
        self._choice.forget()

    def _aged(self, state: np.ndarray, step: int, seen: int) -> np.ndarray:
        """Returns the counts in a step with `seen` ids, halved by `HALF_LIFE` since the last use of the ids.

        Args:
            state: State of rows, `[3, ...]`.
            step: Number of the step.
            seen: Occurrences of all ids of the table in it.
        """
        passed = (step - state[LAST_USED]) * seen  # as if all steps had `seen` ids
        return state[COUNTS] >> np.minimum(passed // (HALF_LIFE * self.blocks.rows), 63)

    def _turns(self, state: np.ndarray, step: int, seen: int) -> np.ndarray:
        """Returns a turn for each row: the lowest is given first, and rows that the step uses are never given."""
        order = np.minimum(self._aged(state, step, seen), LARGEST), state[LAST_USED]
        first, second = order if self.evict == "least_used" else reversed(order)
        turns = (first << 31) + second + IN_USE
        turns[state[LAST_USED] == step] = NEVER
        return np.where(state[COUNTS] > 0, turns, np.where(state[COUNTS] == LET_GO, HELD, UNTOUCHED))

    def _unused(self, since: int | None) -> np.ndarray:
        """Returns the places of the ids whose last step is `since` or earlier."""
        if since is None:
            return np.zeros(0, np.int64)
        return np.flatnonzero((self.state[IDS] != FREE) & (self.state[LAST_USED] <= since))


Entries = tuple[np.ndarray, np.ndarray]
"""Ids in ascending order, `[N]` int64, and their places, `[N]` int32."""
NO_ENTRIES: Entries = np.zeros(0, np.int64), np.zeros(0, np.int32)


class Places:
    """Finds the places of ids by binary search, in all ids sorted once in a while, and in those that came since.

    An entry stays when its id leaves its place, and counts for nothing from then on. To sort all ids again at each step
    would take ten times as long, and to insert into them as long as their copy.

    Args:
        ids: The id of each place, FREE without one, `[R]`; read at each search.
    """

    def __init__(self, ids: np.ndarray) -> None:
        self._ids = ids
        self._entries: list[Entries] = []  # all ids, and those that came since; empty until the first search

    def of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the places of ids, `[N]` to `[N]` int64, NOWHERE for ids without a place."""
        if not self._entries:
            self._sort()
        found = np.full(len(ids), NOWHERE)
        for known, places in self._entries:
            if len(known):
                place = places[np.minimum(np.searchsorted(known, ids), len(known) - 1)]
                found = np.where(self._ids[place] == ids, place, found)
        return found

    def add(self, ids: np.ndarray, places: np.ndarray) -> None:
        """Notes the places that ids were given, `[N]`."""
        if not self._entries:
            return
        (known, known_places), recent = self._entries
        order = ids.argsort()  # they are distinct
        recent = _merged(recent, (ids[order], places[order].astype(np.int32)))
        if len(recent[0]) > max(RECENT, len(known) // RECENT_SHARE):
            valid = self._ids[known_places] == known
            (known, known_places), recent = _merged((known[valid], known_places[valid]), recent), NO_ENTRIES
        self._entries = [(known, known_places), recent]

    def _sort(self) -> None:
        places = np.flatnonzero(self._ids != FREE)
        places = places[self._ids[places].argsort(kind="stable")]
        self._entries = [(self._ids[places], places.astype(np.int32)), NO_ENTRIES]


def _merged(earlier: Entries, later: Entries) -> Entries:
    """Returns two ascending lists of distinct ids, with their places, as one; an id in both has its later place."""
    (ids, places), (new, new_places) = earlier, later
    at = np.searchsorted(ids, new)
    known = np.zeros(len(new), bool)
    known[at < len(ids)] = ids[at[at < len(ids)]] == new[at < len(ids)]
    places = places.copy()
    places[at[known]] = new_places[known]
    return np.insert(ids, at[~known], new[~known]), np.insert(places, at[~known], new_places[~known])
