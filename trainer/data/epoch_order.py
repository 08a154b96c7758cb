"""The order of an epoch: row groups are permuted, rows are shuffled within windows of a lane, lanes make up the steps.

The order of the row groups depends only on `(seed, epoch)`, the order of a window also on its lane and its number.
Checkpoints hold a step and no rows, so neither order may ever change.

An epoch is one sequence of rows. The sequence is cut into `L` lanes whose lengths differ by at most one row. Step `k`
takes the next `B / L` rows of every lane, where `B` is the global batch size. So the position of a run is one number,
the step, and a global batch holds the same samples on any number of ranks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from trainer.core.errors import InputError
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


MIN_LANES = 8  # so that a run that began on few ranks can be resumed on 1, 2, 4, 8 and every multiple of 8
RowRange = tuple[int, int]
"""Where consecutive rows of a data set begin and end."""


@dataclass(frozen=True)
class Lanes:
    """How the samples of an epoch are divided into lanes and steps.

    Attributes:
        rows: Samples of the data set.
        lanes: Number of lanes, `L`.
        global_batch_size: Samples per step over all ranks, `B`; a multiple of `L`.
        keep_last: Whether the last, short step counts.
    """

    rows: int
    lanes: int
    global_batch_size: int
    keep_last: bool = True

    @property
    def samples_per_step(self) -> int:
        """Samples of one lane in one step, `B / L`."""
        return self.global_batch_size // self.lanes

    @property
    def steps(self) -> int:
        """Steps of one epoch, the same on every rank."""
        longest, shortest = -(-self.rows // self.lanes), self.rows // self.lanes
        return -(-longest // self.samples_per_step) if self.keep_last else shortest // self.samples_per_step

    def bounds(self, lane: int) -> RowRange:
        """Returns where a lane begins and ends in the epoch's sequence."""
        length, longer = divmod(self.rows, self.lanes)
        start = lane * length + min(lane, longer)
        return start, start + length + (lane < longer)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The samples of each lane, `[L]`."""
        return np.array([stop - start for start, stop in map(self.bounds, range(self.lanes))])

    def row_slices(self, order: list[RowGroup], ends: np.ndarray, lane: int) -> list[RowSlice]:
        """Returns the rows of a lane; `ends` is `ends_of(order)`."""
        return row_slices(order, ends, *self.bounds(lane))

    def samples_of_steps(self, start: int, stop: int) -> np.ndarray:
        """Returns how many of the samples in `[start, stop)` of a lane each step has, from the first step with any."""
        size = self.samples_per_step
        return np.diff([start, *range((start // size + 1) * size, stop, size), stop])

    def samples_in_step(self, step: int) -> int:
        """Returns the samples of a step of the epoch, over all ranks and without padding."""
        if (step + 1) * self.samples_per_step <= self.rows // self.lanes:  # asked for twice at every step
            return self.global_batch_size
        left = self.lengths - step * self.samples_per_step
        return int(left.clip(0, self.samples_per_step).sum())


def default_lanes(world_size: int) -> int:
    """Returns the smallest multiple of the number of ranks that is at least 8."""
    return world_size * -(-MIN_LANES // world_size)


def check_lanes(lanes: int, world_size: int, global_batch_size: int) -> None:
    """Refuses numbers of lanes, ranks and samples that do not divide evenly.

    Raises:
        InputError: The number of ranks is neither a divisor nor a multiple of the lanes, or the batch cannot be cut
            into equal slices.
    """
    if lanes % world_size and world_size % lanes:
        allowed = [n for n in range(1, lanes + 1) if lanes % n == 0]
        raise InputError(
            f"{world_size} ranks cannot share data.lanes = {lanes}; use a number of ranks that divides it "
            f"({', '.join(map(str, allowed))}) or is a multiple of it"
        )
    slices = max(lanes, world_size)
    if global_batch_size % slices:
        raise InputError(
            f"data.global_batch_size is {global_batch_size}, which {slices} {'lanes' if slices == lanes else 'ranks'} "
            f"do not divide; use a multiple of {slices}, such as {max(1, round(global_batch_size / slices)) * slices}"
        )


def divides(lanes: int, slices: int, global_batch_size: int) -> bool:
    """Returns whether a global batch can be cut into `slices` equal slices of whole lanes, or of one lane each."""
    return (lanes % slices == 0 or slices % lanes == 0) and global_batch_size % max(lanes, slices) == 0


@dataclass(frozen=True)
class Share:
    """What one rank reads of each step: whole lanes, or a slice of one lane.

    Attributes:
        lanes: The lanes.
        slice: The number of the slice, in `[0, slices)`.
        slices: Equal slices that the samples of a lane are cut into in each step.
    """

    lanes: range
    slice: int
    slices: int


def share_of(rank: int, world_size: int, lanes: int) -> Share:
    """Returns the share of a rank."""
    if world_size <= lanes:
        each = lanes // world_size
        return Share(range(rank * each, (rank + 1) * each), 0, 1)
    slices = world_size // lanes
    return Share(range(rank // slices, rank // slices + 1), rank % slices, slices)
