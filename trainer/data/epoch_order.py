"""The order of an epoch: row groups are permuted, rows are shuffled within windows of a lane, lanes form the steps.

An epoch is a sequence of rows. It is cut into `L` lanes whose lengths differ by at most one row. Step `k` takes the
next `B / L` rows of every lane, where `B` is the global batch size. So a single number, the step, is the position of a
run, and a global batch holds the same samples on any number of ranks.

The order of the row groups depends only on `(seed, epoch)`, the order of a window also on its lane and its number.
Neither may ever change: checkpoints hold a step and no rows, so a resumed run would repeat or miss samples.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from trainer.core.errors import InputError
from trainer.data.dataset import RowGroup

EPOCH_STREAM = np.iinfo(np.uint64).max  # stands for a lane in the permutation of row groups; no lane has this number


def philox(seed: int, epoch: int, high: int, low: int, stream: int = 0) -> np.random.Philox:
    """Returns a counter-based generator of random numbers (Philox: Salmon et al., SC 2011)."""
    # The arguments alone decide the state. So no state has to be saved, and any window can be drawn directly.
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
    """Returns the end of each row group in the epoch's sequence, `[G]`."""
    return np.cumsum([group.rows for group in order])


def row_slices(order: list[RowGroup], ends: np.ndarray, start: int, stop: int) -> list[RowSlice]:
    """Returns the slices that make up `[start, stop)` of the epoch's sequence; `ends` is `ends_of(order)`."""
    if start == stop:
        return []
    # `ends` is computed once per epoch, not per lane: a data set can have many row groups, and a lane needs few.
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    return [
        RowSlice(group, max(0, start - int(end) + group.rows), min(group.rows, stop - int(end) + group.rows))
        for group, end in zip(order[first : last + 1], ends[first : last + 1], strict=True)
    ]


@dataclass(frozen=True)
class ShuffleWindow:
    """A shuffle window: rows of a lane that are shuffled among themselves.

    Attributes:
        number: Number of the window in its lane.
        start: First row of the window, counted in the lane.
        row_slices: The rows of the window.
    """

    number: int
    start: int
    row_slices: tuple[RowSlice, ...]

    def __len__(self) -> int:
        return sum(map(len, self.row_slices))

    @property
    def stop(self) -> int:
        """The end of the window, counted in the lane."""
        return self.start + len(self)


def windows(lane: Iterable[RowSlice], size: int) -> Iterator[ShuffleWindow]:
    """Divides a lane into shuffle windows of as many row groups as fit into `size` rows; cuts larger row groups."""
    # Whole row groups, not a fixed number of rows: then a row group belongs to a single window. It can be read column
    # by column, and is never read twice. A sliding buffer of rows, as in tf.data, would have to be saved.
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
    """Returns the order of the rows in a shuffle window, `[rows]`: sorted by random numbers of 16 bits.

    Rows with equal numbers stay in the order of the file.
    """
    # NumPy sorts 16-bit keys by radix, in linear time: 6 ns per row, where Generator.permutation takes 13. An order
    # straight from Philox also does not depend on how a version of NumPy's Generator permutes.
    keys = philox(seed, epoch, lane, window).random_raw(-(-rows // 4)).view(np.uint16)[:rows]
    return keys.argsort(kind="stable")


MIN_LANES = 8  # so that a run that began on few ranks can be resumed on 1, 2, 4, 8 ranks and every multiple of 8
RowRange = tuple[int, int]
"""Where consecutive rows of a data set begin and end."""


@dataclass(frozen=True)
class Lanes:
    """How the samples of an epoch are divided into lanes and steps.

    Attributes:
        rows: Number of samples in the data set.
        lanes: Number of lanes, `L`.
        global_batch_size: Samples per step over all ranks, `B`; a multiple of `L`.
        keep_last: Whether the last step counts if it is short.
    """

    rows: int
    lanes: int
    global_batch_size: int
    keep_last: bool = True

    @property
    def samples_per_step(self) -> int:
        """Number of samples of a lane in a step, `B / L`."""
        return self.global_batch_size // self.lanes

    @property
    def steps(self) -> int:
        """Number of steps in an epoch, the same on every rank."""
        longest, shortest = -(-self.rows // self.lanes), self.rows // self.lanes
        return -(-longest // self.samples_per_step) if self.keep_last else shortest // self.samples_per_step

    def bounds(self, lane: int) -> RowRange:
        """Returns the begin and end of a lane in the epoch's sequence."""
        length, longer = divmod(self.rows, self.lanes)
        start = lane * length + min(lane, longer)
        return start, start + length + (lane < longer)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of samples in each lane, `[L]`."""
        return np.array([stop - start for start, stop in map(self.bounds, range(self.lanes))])

    def row_slices(self, order: list[RowGroup], ends: np.ndarray, lane: int) -> list[RowSlice]:
        """Returns the rows of a lane; `ends` is `ends_of(order)`."""
        return row_slices(order, ends, *self.bounds(lane))

    def samples_of_steps(self, start: int, stop: int) -> np.ndarray:
        """Returns how many samples each step has among `[start, stop)` of a lane, from the first step with any."""
        size = self.samples_per_step
        return np.diff([start, *range((start // size + 1) * size, stop, size), stop])

    def samples_in_step(self, step: int) -> int:
        """Returns the number of samples in a step of the epoch, over all ranks and without padding."""
        # The usual case comes first, because this is called twice in every step.
        if (step + 1) * self.samples_per_step <= self.rows // self.lanes:
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
    """Returns whether a global batch can be cut into `slices` equal slices of whole lanes, or of parts of a lane."""
    return (lanes % slices == 0 or slices % lanes == 0) and global_batch_size % max(lanes, slices) == 0


@dataclass(frozen=True)
class Share:
    """The part of each step that a rank reads: whole lanes, or a slice of a lane.

    Attributes:
        lanes: The lanes.
        slice: The number of the slice, in `[0, slices)`.
        slices: Number of equal slices that the samples of a lane are cut into in each step.
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
