"""Rows of shuffle windows, from row groups that are decoded once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from trainer.data.dataset import RowGroup
from trainer.data.rows import Rows
from trainer.data.shuffling import RowSlice, ShuffleWindow

Decode = Callable[[RowSlice, np.ndarray | None], Rows]
"""Decodes a slice of a row group, in an order; None for the order of the file."""


class WindowRows:
    """Decodes the rows of shuffle windows. Threads may ask for different windows at once.

    Args:
        windows: All windows that will be asked for, each once.
        decode: Decodes row groups that only one window needs.
        decode_shared: Decodes row groups that several windows need, while the other windows wait.
    """

    def __init__(self, windows: Iterable[ShuffleWindow], decode: Decode, decode_shared: Decode) -> None:
        self._decode = decode
        self._shared = shared((one for window in windows for one in window.row_slices), decode_shared)

    def __call__(self, window: ShuffleWindow, order: np.ndarray | None = None) -> Rows:
        """Returns the rows of a window, in an order; None for the order of the files."""
        if len(window.row_slices) == 1 and window.row_slices[0].group not in self._shared:
            return self._decode(window.row_slices[0], order)
        rows = Rows.join([self._rows(one) for one in window.row_slices])
        return rows if order is None else rows.take(order)

    def _rows(self, row_slice: RowSlice) -> Rows:
        found = self._shared.get(row_slice.group)
        return found.take(row_slice) if found else self._decode(row_slice, None)


@dataclass
class SharedRows:
    """Rows of a row group for slices of several windows: decoded once, and kept until the last slice is taken.

    Attributes:
        whole: From the beginning of the first slice to the end of the last.
        uses: Windows that still need a slice.
        decode: Decodes the whole.
    """

    whole: RowSlice
    uses: int
    decode: Decode
    _rows: Rows | None = None
    _lock: Lock = field(default_factory=Lock)  # threads read lanes, and two may need the same row group

    def take(self, row_slice: RowSlice) -> Rows:
        """Returns a slice; the first decodes the whole."""
        with self._lock:
            rows = self.decode(self.whole, None) if self._rows is None else self._rows
            self.uses -= 1
            self._rows = rows if self.uses else None
        return rows.slice(row_slice.start - self.whole.start, row_slice.stop - self.whole.start)


def shared(slices: Iterable[RowSlice], decode: Decode) -> dict[RowGroup, SharedRows]:
    """Returns the rows to share, for each row group that occurs more than once."""
    # Counting uses replaced two caches by size, which could not know the last use of a row group.
    by_group: dict[RowGroup, list[RowSlice]] = {}
    for one in slices:
        by_group.setdefault(one.group, []).append(one)
    again = {group: found for group, found in by_group.items() if len(found) > 1}
    return {group: SharedRows(_hull(group, found), len(found), decode) for group, found in again.items()}


def _hull(group: RowGroup, slices: Sequence[RowSlice]) -> RowSlice:
    return RowSlice(group, min(one.start for one in slices), max(one.stop for one in slices))
