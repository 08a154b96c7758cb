"""Counts events of the same moment, and copies of events, in a stream of sorted events."""

from collections.abc import Sequence

import numpy as np

from trainer.core.arrays import mix


class Ties:
    """The counts of a stream.

    Attributes:
        tied: Events at the time of another event of the user before them.
        copies: Those of them that are also equal to one in all values.
    """

    def __init__(self) -> None:
        self.tied = self.copies = 0
        # Events of the last moment, which may go on: users, times, and hashes of the values.
        self._open: list[np.ndarray] = [np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64)]

    def add(self, users: np.ndarray, times: np.ndarray, values: Sequence[np.ndarray]) -> None:
        """Adds the next events: users and times, `[N]` int64, and values of any width, `[N]` each."""
        hashes = np.zeros(len(users), np.uint64)
        for column in values:
            hashes = mix(hashes ^ mix(column.view(f"u{column.itemsize}")))
        users, times, hashes = (np.append(*pair) for pair in zip(self._open, (users, times, hashes), strict=True))
        begins = np.append(True, (users[1:] != users[:-1]) | (times[1:] != times[:-1]))
        last = int(np.flatnonzero(begins)[-1])
        self._open = [users[last:], times[last:], hashes[last:]]
        self._count(begins[:last], hashes[:last])

    def finish(self) -> None:
        """Counts the last moment."""
        hashes = self._open[2]
        self._count(np.arange(len(hashes)) == 0, hashes)

    def _count(self, begins: np.ndarray, hashes: np.ndarray) -> None:
        self.tied += int((~begins).sum())
        shared = ~begins | np.append(~begins[1:], False)  # events that are not alone in their moment
        moments, hashes = begins.cumsum()[shared], hashes[shared]
        order = np.lexsort((hashes, moments))
        moments, hashes = moments[order], hashes[order]
        self.copies += int(((moments[1:] == moments[:-1]) & (hashes[1:] == hashes[:-1])).sum())
