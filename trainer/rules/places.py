"""Finds the places of ids in an array that changes all the time."""

import numpy as np

FREE = -1  # in place of an id; ids are at least 0
NOWHERE = -1  # in place of a place
RECENT, RECENT_SHARE = 4096, 8  # ids that are kept apart: so many, or this part of the others
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
