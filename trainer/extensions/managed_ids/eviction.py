"""Which rows new ids get, and which ids lose theirs: eviction."""

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trainer.core.arrays import places_in_groups
from trainer.extensions.managed_ids.blocks import PartOfBlocks

IDS, LAST_USED, COUNTS = range(3)  # state of a row: its id, the last step with the id, how often it occurred
LET_GO = -1  # count of a free row whose weights are those of an earlier id; an untouched row has 0
HELD, UNTOUCHED, IN_USE, NEVER = 0, 1, 2, np.iinfo(np.int64).max  # turns of rows: the lowest is given first
ROWS_AT_ONCE = 1 << 16  # rows whose turns are computed together: their state fits in a cache

Turns = Callable[[np.ndarray], np.ndarray]
"""Returns numbers of rows by their state, `[3, ...]`: HELD, UNTOUCHED or more, the lowest for the first to give."""
Choice = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Places in the order of their blocks, `[K]`; whether each is HELD, as its id was let go, UNTOUCHED or IN_USE, `[K]`;
the number of places of each block, `[N]`."""
NOTHING: Choice = (np.zeros(0, np.int64),) * 3


class RowChoice:
    """Chooses the rows that new ids get in their blocks.

    In a table with room, most of them get the next row of their block; only then all its rows are looked at.

    Args:
        part: The blocks.
        state: The state of their rows, `[3, R]`, read at each choice.
    """

    def __init__(self, part: PartOfBlocks, state: np.ndarray) -> None:
        self._part, self._state = part, state
        self._next: np.ndarray | None = None  # untouched rows of each block, 0 of a block with rows that were let go

    def forget(self) -> None:
        """Makes the next choice look at all state again. Call this after a change beside chosen rows."""
        self._next = None

    def choose(self, blocks: np.ndarray, wanted: np.ndarray, turns: Turns, resting: np.ndarray) -> Choice:
        """Chooses as many rows as wanted, or all that can be given; the caller gives them.

        Args:
            blocks: Blocks, ascending, `[N]`.
            wanted: Rows for each, `[N]`.
            turns: Returns the order of rows.
            resting: Places that cannot be given, `[M]`.
        """
        if self._next is None:
            self._next = self._untouched()
        is_next = wanted <= self._next[blocks]
        following = self._following(blocks[is_next], wanted[is_next])
        others, at_once = np.flatnonzero(~is_next), max(1, ROWS_AT_ONCE * len(self._part) // max(1, self._part.size))
        found = [
            self._lowest(blocks[some], wanted[some], turns, resting)
            for some in np.split(others, range(at_once, len(others), at_once))
        ]
        self._next[blocks] = np.where(is_next, self._next[blocks] - wanted, 0)
        places, kinds, numbers = (np.concatenate(one) for one in zip(following, *found, strict=True))
        chosen = np.append(np.flatnonzero(is_next), others)
        by_block = np.repeat(chosen, numbers).argsort(kind="stable")
        return places[by_block], kinds[by_block], numbers[chosen.argsort()]

    def _untouched(self) -> np.ndarray:
        untouched, held = self._numbers_of(0), self._numbers_of(LET_GO)
        if self._part.shared is not None:
            untouched[0] -= 1
        return np.where(held > 0, 0, untouched)

    def _numbers_of(self, count: int) -> np.ndarray:
        """Returns how many rows of each block have a count, `[blocks]`."""
        found, before = np.zeros(len(self._part), np.int64), np.zeros(self._part.size + 1, np.int32)
        np.cumsum(self._state[COUNTS] == count, out=before[1:])
        for first, end in self._part.stretches(np.arange(len(self._part))):
            found += before[end] - before[first]
        return found

    def _following(self, blocks: np.ndarray, wanted: np.ndarray) -> Choice:
        """Returns the next rows of blocks."""
        assert self._next is not None
        left = np.repeat(self._next[blocks], wanted) - places_in_groups(wanted)  # untouched rows, this one included
        places = np.empty(len(left), np.int64)
        for first, end in [*self._part.stretches(np.repeat(blocks, wanted))][::-1]:
            here = (left > 0) & (left <= end - first)
            places[here] = (end - left)[here]
            left -= end - first
        return places, np.full(len(left), UNTOUCHED), wanted

    def _lowest(self, blocks: np.ndarray, wanted: np.ndarray, turns: Turns, resting: np.ndarray) -> Choice:
        """Returns the rows with the lowest turns."""
        if not len(blocks):
            return NOTHING
        places, of_places = self._look(blocks, turns)
        of_places[np.isin(places, resting)] = NEVER
        most = min(int(wanted.max()), places.shape[1])
        lowest = np.sort(np.partition(of_places, most - 1)[:, :most])
        wanted = np.minimum(wanted, (lowest != NEVER).sum(1))
        last = lowest[np.arange(len(blocks)), wanted - 1][:, None]
        # By the turn of the last and not by np.argpartition, whose choice among equal turns is undefined.
        sure, tied = of_places < last, of_places == last
        taken = sure | (tied & (tied.cumsum(1) <= (wanted - sure.sum(1))[:, None]))
        kinds = np.minimum(of_places[taken], IN_USE)
        order = np.lexsort((places[taken], kinds, taken.nonzero()[0]))
        return places[taken][order], kinds[order], wanted

    def _look(self, blocks: np.ndarray, turns: Turns) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places of all rows of blocks and their turns, `[N, R]`."""
        found = []
        for first, end in self._part.stretches(blocks):
            width = int((end - first).max())  # of other blocks it is one less; what is beside them is never given
            start = np.minimum(first, self._state.shape[1] - width)
            places = start[:, None] + np.arange(width)
            of_places = turns(sliding_window_view(self._state, width, axis=1)[:, start])
            of_places[(places < first[:, None]) | (places >= end[:, None]) | (places == self._part.shared)] = NEVER
            found.append((places, of_places))
        places, of_places = zip(*found, strict=True)
        return np.concatenate(places, 1), np.concatenate(of_places, 1)
