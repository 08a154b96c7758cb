"""The order of an epoch: row groups are permuted, and rows are shuffled within windows of a lane.

The order of the row groups depends only on `(seed, epoch)`, the order of a window also on its lane and its number.
Checkpoints hold a step and no rows, so neither order may ever change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from trainer.data.dataset import RowGroup

EPOCH_STREAM = np.iinfo(np.uint64).max  # the counter of the epoch's own permutation; no lane has this number


def philox(seed: int, epoch: int, high: int, low: int, stream: int = 0) -> np.random.Philox:
    """Returns a generator of random numbers by counter (Philox: Salmon et al., SC 2011)."""
    # The state is a function of the arguments, so nothing has to be saved, and any window can be drawn directly.
    counter = np.array([0, stream, low, high], dtype=np.uint64)
    return np.random.Philox(counter=counter, key=np.array([seed, epoch], dtype=np.uint64))


def epoch_order(groups: list[RowGroup], seed: int, epoch: int, shuffle: bool) -> list[RowGroup]:
    """Returns the row groups in the order of the epoch."""
    if not shuffle:
        return groups
    random = np.random.Generator(philox(seed, epoch, EPOCH_STREAM, EPOCH_STREAM))
    return [groups[i] for i in random.permutation(len(groups))]


@dataclass(frozen=True)
class RowSlice:
    """The rows in `[start, stop)` of a row group."""

    group: RowGroup
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


def ends_of(order: list[RowGroup]) -> np.ndarray:
    """Returns where each row group ends in the epoch's sequence, `[G]`."""
    return np.cumsum([group.rows for group in order])


def row_slices(order: list[RowGroup], ends: np.ndarray, start: int, stop: int) -> list[RowSlice]:
    """Returns the slices that hold `[start, stop)` of the epoch's sequence; `ends` is `ends_of(order)`."""
    if start == stop:
        return []
    # The sums are made once per epoch, not per lane: a data set can have many row groups, and a lane needs few.
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    return [
        RowSlice(group, max(0, start - int(end) + group.rows), min(group.rows, stop - int(end) + group.rows))
        for group, end in zip(order[first : last + 1], ends[first : last + 1], strict=True)
    ]


@dataclass(frozen=True)
class ShuffleWindow:
    """Rows of a lane that are shuffled among themselves.

    Attributes:
        number: Its place in the lane.
        start: Where it begins in the lane.
        row_slices: Its rows.
    """

    number: int
    start: int
    row_slices: tuple[RowSlice, ...]

    def __len__(self) -> int:
        return sum(map(len, self.row_slices))

    @property
    def stop(self) -> int:
        """Where it ends in the lane."""
        return self.start + len(self)


def windows(lane: Iterable[RowSlice], size: int) -> Iterator[ShuffleWindow]:
    """Yields a lane's shuffle windows, each of as many row groups as fit into `size` rows. Cuts larger row groups."""
    # Whole row groups, not a fixed number of rows: then only one window needs a row group, which can be read column by
    # column, and is never read twice. A sliding buffer of rows, as in tf.data, would have to be saved.
    window = ShuffleWindow(0, 0, ())
    for row_slice in lane:
        for start in range(row_slice.start, row_slice.stop, size):
            piece = RowSlice(row_slice.group, start, min(start + size, row_slice.stop))
            if window.row_slices and len(window) + len(piece) > size:
                yield window
                window = ShuffleWindow(window.number + 1, window.stop, ())
            window = replace(window, row_slices=(*window.row_slices, piece))
    if window.row_slices:
        yield window


def window_order(rows: int, seed: int, epoch: int, lane: int, window: int) -> np.ndarray:
    """Returns the order of the rows of a shuffle window, `[rows]`: sorted by random numbers of 16 bits.

    Rows that draw the same number stay in the order of the file.
    """
    # NumPy's stable sort of 16-bit keys is a radix sort, of linear time: 6 ns per row where Generator.permutation takes
    # 13. Straight from Philox, the order also does not depend on how a version of NumPy's Generator permutes.
    keys = philox(seed, epoch, lane, window).random_raw(-(-rows // 4)).view(np.uint16)[:rows]
    return keys.argsort(kind="stable")
