"""Makes batches ahead of training: threads read, decode, shuffle and assemble while the model computes.

Without torch's DataLoader: its workers are processes, which cannot share a row group among windows, and copy every
batch. Without torchdata's: its saved state fits only one number of ranks, while here the position is the step. Threads
suffice, because Arrow, NumPy and file systems let other threads run while they work.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import torch

from trainer.batches.batch import Batch, to_batches
from trainer.batches.decode import Chunk, decode
from trainer.batches.negatives import Negatives
from trainer.batches.rows import Rows
from trainer.batches.windows import WindowRows, costs, dealt, dealt_to_steps
from trainer.config.data import BalanceConfig, DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import FileSet
from trainer.data.epoch_order import (
    Lanes,
    RowSlice,
    Share,
    ShuffleWindow,
    ends_of,
    epoch_order,
    share_of,
    window_order,
    windows,
)
from trainer.data.row_groups import RowGroupReader
from trainer.rules.vocabulary import fingerprints

T = TypeVar("T")
END: Any = object()  # the end of an iterator, as a generator cannot pass StopIteration on
# Small batches are made several at once, so that training is not kept from Python's lock by the calls for each of them.
# With 2^14 rows at once, a compiled DeepFM in batches of 1,024 takes 2.3 ms a step on two cores; with 2^16, 2.1.
TOGETHER_ROWS = 1 << 16
# Two are enough beside training on a CPU. Beside an H200 with 16 cores, DLRM in batches of 65,536 waited less for four
# (13.9 ms a step, not 18.6); eight read no faster than four.
LEAST_READ_THREADS, MOST_READ_THREADS = 2, 4


class Loader:
    """Yields one rank's batches of a data set, from any step on.

    Memory per rank is about two shuffle windows for each of its lanes, and the decoded row groups that more than one
    window needs: row groups larger than a window, and row groups at the border of two lanes.

    Args:
        files: The data set.
        config: The columns and the reading options.
        lanes: How an epoch is divided into lanes and steps.
        rank: This rank.
        world_size: Number of ranks.
        seed: Seed of the shuffling.
        shuffle: Whether to shuffle.
        negatives: Appends negatives to the samples of each lane; None without a catalogue.
        balance: How samples are dealt to the ranks. Unset: a rank takes the samples of its lanes.

    Raises:
        InputError: The balance names features without lists.
    """

    def __init__(
        self,
        files: FileSet,
        config: DataConfig,
        lanes: Lanes,
        rank: int,
        world_size: int,
        seed: int,
        shuffle: bool,
        negatives: Negatives | None = None,
        balance: BalanceConfig | None = None,
    ) -> None:
        self._files, self._config, self._lanes = files, config, lanes
        self._balance = balance if balance and balance.features and world_size > 1 else None
        self._rank, self._world_size = rank, world_size
        everything = Share(range(lanes.lanes), slice=0, slices=1)
        self._share = everything if self._balance else share_of(rank, world_size, lanes.lanes)
        self._seed, self._shuffle, self._negatives = seed, shuffle, negatives
        self._even_steps = config.even_steps if shuffle and config.even_steps.features else None
        self._lists = files.files[0].lists
        are_alike = not self._lists and negatives is None and self._share.slices == 1
        for key, section in (("data.balance", self._balance), ("data.even_steps", self._even_steps)):
            for name in section.features if section else ():
                if name not in self._lists:
                    raise InputError(
                        f"{key}.features names '{name}', which has single ids, that all cost the same; leave it out"
                    )
        self._together = max(1, TOGETHER_ROWS * world_size // lanes.global_batch_size) if are_alike else 1
        self._reader = RowGroupReader(files, config)
        fingerprints(config.sparse)  # reads the vocabularies now, in one thread
        # Now, in one thread, pyarrow imports pandas, where that is installed. One of a hundred runs in which the read
        # threads began it together met half a module.
        pa.array([])

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, the same on every rank."""
        return self._lanes.steps

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yields the batches of the steps in `[start, stop)`, counted over all epochs and made in the background.

        Raises:
            InputError: A value in the data is not allowed, or a file is gone or damaged.
            StorageError: A file cannot be read now.
        """
        assembler = ThreadPoolExecutor(1, "assemble")
        threads = self._config.read_threads or _read_threads()
        # Lanes end first, which still ask for columns.
        with ThreadPoolExecutor(threads, "decode") as columns, ThreadPoolExecutor(threads, "read") as lanes:
            pools = _Pools(lanes, columns if threads > 1 and self._reader.columns_at_once else None, threads)
            try:
                depth = -(-self._config.prefetch_batches // self._together)
                for batches in _ahead(self._assemble(start, stop, pools), depth, assembler):
                    yield from batches
            finally:
                assembler.shutdown(cancel_futures=True)

    def _assemble(self, start: int, stop: int, pools: "_Pools") -> Iterator[list[Batch]]:
        """Yields the batches, those that are made together in one list."""
        while start < stop:
            epoch, first = divmod(start, self._lanes.steps)
            last = min(self._lanes.steps, first + stop - start)
            together = [range(step, min(step + self._together, last)) for step in range(first, last, self._together)]
            for steps, lanes in zip(together, self._epoch(epoch, together, pools), strict=True):
                scales = [self._world_size / self._lanes.samples_in_step(step) for step in steps]
                log_q = self._negatives.log_q(lanes) if self._negatives else None
                yield to_batches(lanes, self._config, scales, log_q)
            start += last - first

    def _epoch(self, epoch: int, together: list[range], pools: "_Pools") -> Iterator[list[Rows]]:
        """Yields this rank's rows of steps of an epoch, several steps together, lane by lane."""
        streams = self._streams(epoch, together, pools)
        for _ in together:
            lanes = [self._slice(next(stream)) for stream in streams]
            yield [self._dealt(Rows.join(lanes))] if self._balance else lanes

    def _streams(self, epoch: int, together: list[range], pools: "_Pools") -> list[Iterator[Rows]]:
        """Returns the rows of the steps in each lane that this rank reads."""
        first = together[0].start
        offset = first * self._lanes.samples_per_step
        plan = self._plan(epoch, offset, self._share.lanes)
        rows_of = self._window_rows(epoch, plan, pools)
        read = [_ahead(self._read_lane(epoch, lane, plan[lane], offset, rows_of), 1, pools.lanes) for lane in plan]
        streams = [self._steps(rows, together) for rows in read]
        if self._negatives:
            follow = self._negatives.follow
            streams = [follow(rows, epoch, lane, first) for lane, rows in zip(plan, streams, strict=True)]
        return streams

    def _dealt(self, rows: Rows) -> Rows:
        """Returns this rank's rows of a global batch."""
        assert self._balance is not None
        return rows.take(dealt(costs(rows, self._balance), self._world_size)[self._rank])

    def locate(self, step: int, position: int) -> str:
        """Returns the name of a sample in messages: file, row group and row.

        Args:
            step: The step, counted over all epochs; the first is 1.
            position: The sample's place in the global batch, rank after rank.
        """
        epoch, of_epoch = divmod(step - 1, self._lanes.steps)
        lane, sample = divmod(self._place_of(epoch, of_epoch, position), self._lanes.samples_per_step)
        at = of_epoch * self._lanes.samples_per_step + sample
        if not (plan := self._plan(epoch, at, [lane])[lane]):
            return "padding"
        window = plan[0]
        order, row = self._order(epoch, lane, window), at - window.start
        if order is not None and self._even_steps:
            order = self._evened(order, self._window_rows(epoch, {lane: [window]})(window), window)
        row = row if order is None else int(order[row])
        for row_slice in window.row_slices:
            if row < len(row_slice):
                break
            row -= len(row_slice)
        return self._reader.where_row(row_slice.group, row_slice.start + row, epoch)

    def _place_of(self, epoch: int, step: int, position: int) -> int:
        """Returns the place of a sample among the lanes, from its position in the global batch."""
        if self._balance is None:
            return position
        with ThreadPoolExecutor(1) as pool:
            streams = self._streams(epoch, [range(step, step + 1)], _Pools(pool))
            rows = Rows.join([next(stream) for stream in streams])
        return int(dealt(costs(rows, self._balance), self._world_size).reshape(-1)[position])

    def _slice(self, rows: Rows) -> Rows:
        """Returns this rank's slice of the rows of a lane in a step."""
        # Ranks of a lane read the same rows and keep their slice: files cannot be cut finer than row groups, and the
        # samples of a step must not depend on the number of ranks.
        number, size = self._share.slice, len(rows) // self._share.slices
        return rows if size == len(rows) else rows.slice(number * size, (number + 1) * size)

    def _plan(self, epoch: int, offset: int, lanes: Iterable[int]) -> dict[int, list[ShuffleWindow]]:
        """Returns, for each of some lanes, the windows that hold its samples from `offset` on."""
        order = epoch_order(self._files.row_groups, self._seed, epoch, self._shuffle)
        ends, size = ends_of(order), self._config.shuffle_window_rows
        slices = {lane: self._lanes.row_slices(order, ends, lane) for lane in lanes}
        return {lane: [one for one in windows(rows, size) if one.stop > offset] for lane, rows in slices.items()}

    def _order(self, epoch: int, lane: int, window: ShuffleWindow) -> np.ndarray | None:
        """Returns the order of the rows of a window; None for the order of the files."""
        return window_order(len(window), self._seed, epoch, lane, window.number) if self._shuffle else None

    def _window_rows(
        self, epoch: int, plan: dict[int, list[ShuffleWindow]], pools: "_Pools | None" = None
    ) -> WindowRows:
        """Returns the rows of the windows of some lanes."""
        by_column = partial(self._decode, epoch, pools.columns if pools else None)
        # Lanes have threads of their own; so columns need them only where lanes are few, or wait for one another.
        by_lane = by_column if pools and len(plan) < pools.threads else partial(self._decode, epoch, None)
        return WindowRows(chain(*plan.values()), by_lane, by_column)

    def _read_lane(
        self, epoch: int, lane: int, plan: list[ShuffleWindow], offset: int, rows_of: WindowRows
    ) -> Iterator[Rows]:
        """Yields a lane's windows, shuffled, from the sample at `offset` on."""
        for window in plan:
            order = self._order(epoch, lane, window)
            if order is not None and self._even_steps:
                rows = rows_of(window)
                rows = rows.take(self._evened(order, rows, window))
            else:
                rows = rows_of(window, order)
            yield rows.slice(max(0, offset - window.start), len(window))

    def _evened(self, order: np.ndarray, rows: Rows, window: ShuffleWindow) -> np.ndarray:
        """Returns the order of the rows of a window with those of each step together, so that steps cost the same."""
        assert self._even_steps is not None
        sizes = self._lanes.samples_of_steps(window.start, window.stop)
        return dealt_to_steps(order, costs(rows, self._even_steps), sizes)

    def _decode(
        self, epoch: int, pool: ThreadPoolExecutor | None, row_slice: RowSlice, order: np.ndarray | None
    ) -> Rows:
        """Decodes rows of a row group, each column while in the cache."""
        with self._reader.open(row_slice.group, epoch) as column:
            rows = range(row_slice.start, row_slice.stop)
            chunk = Chunk(column, rows, partial(self._reader.where, row_slice.group))
            return decode(chunk, self._config, self._lists, order, pool)

    def _steps(self, windows: Iterator[Rows], together: list[range]) -> Iterator[Rows]:
        """Cuts the windows of a lane into rows of as many steps as are made together, and pads the last ones.

        Lanes differ by one sample, and a rank with finished lanes must not leave others waiting in a collective.
        """
        window, at = Rows.padding(0, self._config, self._lists), 0
        for steps in together:
            pieces, need = [], len(steps) * self._lanes.samples_per_step
            while need:
                if at == len(window):
                    window, at = next(windows, None) or Rows.padding(need, self._config, self._lists), 0
                pieces.append(window.slice(at, min(at + need, len(window))))
                at, need = at + len(pieces[-1]), need - len(pieces[-1])
            yield Rows.join(pieces)


def _read_threads() -> int:
    """Returns half of the threads that torch computes with, which are the rank's cores, within limits."""
    return min(max(torch.get_num_threads() // 2, LEAST_READ_THREADS), MOST_READ_THREADS)


def _ahead(items: Iterator[T], depth: int, pool: ThreadPoolExecutor) -> Iterator[T]:
    """Returns the items; the pool makes `depth` items ahead, from now on. A depth above 1 needs a one-thread pool."""
    take = partial(pool.submit, next, items, END)
    waiting = deque(take() for _ in range(depth))

    # An inner generator: as a generator, `_ahead` would only begin at its first item, but all lanes start at once.
    def wait() -> Iterator[T]:
        while (item := waiting.popleft().result()) is not END:
            waiting.append(take())
            yield item

    return wait()


class _Pools(NamedTuple):
    """The threads of a loader.

    Attributes:
        lanes: Read lanes.
        columns: Decode columns of one row group. Unset: the thread of its lane decodes them.
        threads: Number of threads in each.
    """

    lanes: ThreadPoolExecutor
    columns: ThreadPoolExecutor | None = None
    threads: int = 1
