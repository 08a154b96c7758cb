"""The order of an epoch: which rows make up step k, for any number of ranks.

An epoch is the data set's row groups in an order that depends on `(seed, epoch)` alone, read as one sequence of rows.
The sequence is cut into `L` lanes whose lengths differ by at most one row. Inside a lane, rows are shuffled within
windows. Step `k` takes the next `B / L` rows of every lane, where `B` is the global batch size. So the position of a
job is one number, the step, and a global batch holds the same rows whatever the number of ranks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from trainer.core.errors import InputError
from trainer.data.dataset import RowGroup

MIN_LANES = 8
EPOCH_STREAM = np.iinfo(np.uint64).max  # the counter of the epoch's own permutation; no lane has this number


@dataclass(frozen=True)
class Lanes:
    """How the rows of an epoch fall into lanes and steps.

    Attributes:
        rows: Rows of the data set.
        lanes: Number of lanes, `L`.
        global_batch_size: Rows per step over all ranks, `B`; a multiple of `L`.
        keep_last: Whether the last, short step counts.
    """

    rows: int
    lanes: int
    global_batch_size: int
    keep_last: bool = True

    @property
    def samples_per_step(self) -> int:
        """Rows that one lane gives to one step, `B / L`."""
        return self.global_batch_size // self.lanes

    @property
    def steps(self) -> int:
        """Steps of one epoch, the same on every rank."""
        longest, shortest = -(-self.rows // self.lanes), self.rows // self.lanes
        return -(-longest // self.samples_per_step) if self.keep_last else shortest // self.samples_per_step

    def bounds(self, lane: int) -> tuple[int, int]:
        """Returns the first row of a lane, and the row after its last, in the epoch's sequence."""
        length, longer = divmod(self.rows, self.lanes)
        start = lane * length + min(lane, longer)
        return start, start + length + (lane < longer)

    def length(self, lane: int) -> int:
        """Returns the rows of a lane."""
        start, stop = self.bounds(lane)
        return stop - start

    def samples_in_step(self, step: int) -> int:
        """Returns the real rows, over all ranks, of a step of the epoch; padding is not counted."""
        return sum(
            min(self.samples_per_step, max(0, self.length(lane) - step * self.samples_per_step))
            for lane in range(self.lanes)
        )


@dataclass(frozen=True)
class Share:
    """What one rank serves: whole lanes, or an equal part of one lane's rows.

    Attributes:
        lanes: The lanes.
        part: Which part of each step's rows, in `[0, parts)`.
        parts: Parts that each step's rows of these lanes are cut into.
    """

    lanes: range
    part: int
    parts: int


def default_lanes(world_size: int) -> int:
    """Returns the smallest multiple of the number of ranks that is at least 8."""
    return world_size * -(-MIN_LANES // world_size)


def check_lanes(lanes: int, world_size: int, global_batch_size: int) -> None:
    """Refuses numbers that do not divide.

    Raises:
        InputError: The number of ranks is neither a divisor nor a multiple of the lanes, or the batch cannot be cut
            into equal parts.
    """
    if lanes % world_size and world_size % lanes:
        allowed = [n for n in range(1, lanes + 1) if lanes % n == 0]
        raise InputError(
            f"{world_size} ranks cannot share data.lanes = {lanes}; use a number of ranks that divides it "
            f"({', '.join(map(str, allowed))}) or is a multiple of it"
        )
    parts = max(lanes, world_size)
    if global_batch_size % parts:
        raise InputError(
            f"data.global_batch_size is {global_batch_size}, which {parts} {'lanes' if parts == lanes else 'ranks'} "
            f"do not divide; use a multiple of {parts}, such as {max(1, round(global_batch_size / parts)) * parts}"
        )


def share_of(rank: int, world_size: int, lanes: int) -> Share:
    """Returns what a rank serves."""
    if world_size <= lanes:
        each = lanes // world_size
        return Share(range(rank * each, (rank + 1) * each), 0, 1)
    parts = world_size // lanes
    return Share(range(rank // parts, rank // parts + 1), rank % parts, parts)


def epoch_order(groups: list[RowGroup], seed: int, epoch: int, shuffle: bool) -> list[RowGroup]:
    """Returns the row groups in the order of the epoch."""
    if not shuffle:
        return groups
    random = np.random.Generator(_random(seed, epoch, EPOCH_STREAM, EPOCH_STREAM))
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
    """Returns where the rows in `[start, stop)` of the epoch's sequence are; `ends` is `ends_of(order)`."""
    if start == stop:
        return []
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    return [
        RowSlice(group, max(0, start - int(end) + group.rows), min(group.rows, stop - int(end) + group.rows))
        for group, end in zip(order[first : last + 1], ends[first : last + 1], strict=True)
    ]


@dataclass(frozen=True)
class Window:
    """Rows of a lane that are shuffled among themselves.

    Attributes:
        number: Its place in the lane.
        start: Where in the lane its first row is.
        row_slices: The rows.
    """

    number: int
    start: int
    row_slices: tuple[RowSlice, ...]

    def __len__(self) -> int:
        return sum(map(len, self.row_slices))

    @property
    def stop(self) -> int:
        """Where in the lane its last row ends."""
        return self.start + len(self)


def windows(lane: Iterable[RowSlice], size: int) -> Iterator[Window]:
    """Yields a lane's shuffle windows, each of as many row groups as fit into `size` rows; larger ones are cut."""
    window = Window(0, 0, ())
    for span in lane:
        for start in range(span.start, span.stop, size):
            part = RowSlice(span.group, start, min(start + size, span.stop))
            if window.row_slices and len(window) + len(part) > size:
                yield window
                window = Window(window.number + 1, window.stop, ())
            window = replace(window, row_slices=(*window.row_slices, part))
    if window.row_slices:
        yield window


def window_order(rows: int, seed: int, epoch: int, lane: int, window: int) -> np.ndarray:
    """Returns the order of the rows of a shuffle window, `[rows]`.

    Rows are sorted by random numbers of 16 bits, which takes linear time. The few that draw the same number stay in
    the order of the file.
    """
    keys = _random(seed, epoch, lane, window).random_raw(-(-rows // 4)).view(np.uint16)[:rows]
    return keys.argsort(kind="stable")


def _random(seed: int, epoch: int, high: int, low: int) -> np.random.Philox:
    """A counter-based generator (Philox: Salmon et al., SC 2011), keyed so that no state has to be carried along."""
    counter = np.array([0, 0, low, high], dtype=np.uint64)
    return np.random.Philox(counter=counter, key=np.array([seed, epoch], dtype=np.uint64))
