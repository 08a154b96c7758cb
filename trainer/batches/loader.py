"""The loader: threads read, decode, shuffle and assemble batches while the model computes.

Rows flow from `_read_lane` (windows of a lane) through `_steps` (rows of a step) and `_epoch` (all lanes of this rank)
to `_assemble` (batches). The position of a run is its step, so the loader has no state to save.

Why not torch's DataLoader: its workers are processes, which copy every batch and cannot share a row group among
windows. Why not torchdata's: its saved state fits a single number of ranks. Threads suffice, because Arrow, NumPy and
file systems let other threads run while they work.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import torch

from trainer.batches.batch import Batch, to_batches
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.negatives import Negatives
from trainer.batches.rows import Rows
from trainer.batches.windows import KeptRows, WindowRows, costs, dealt, dealt_to_steps
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
END: Any = object()  # marks the end of an iterator, because StopIteration cannot pass through a future or a generator
# Small batches are made several at a time: the calls for each would keep training waiting for Python's lock. With 2^14
# rows at a time, a compiled DeepFM in batches of 1,024 takes 2.3 ms a step on two cores; with 2^16 rows 2.1 ms.
TOGETHER_ROWS = 1 << 16
# Beside training on a CPU two threads are enough. Beside an H200 with 16 cores, DLRM in batches of 65,536 took 18.6 ms
# a step with two threads and 13.9 ms with four; eight were no faster.
LEAST_READ_THREADS, MOST_READ_THREADS = 2, 4


class Loader:
    """Makes a rank's batches of a data set, from any step on.

    A rank needs memory for about two shuffle windows of each of its lanes, and for decoded row groups that several
    windows share: those larger than a window, and those at the border of two lanes. A data set of no more rows than a
    shuffle window for each of the rank's lanes stays decoded from one epoch to the next.

    Args:
        files: The data set.
        config: The columns and the options of reading.
        lanes: How an epoch is divided into lanes and steps.
        rank: This rank.
        world_size: Number of ranks.
        seed: Seed of the shuffling.
        shuffle: Whether to shuffle.
        negatives: Appends negatives to the samples of each lane; None without a catalogue.
        balance: How samples are dealt to the ranks by their cost. Unset: a rank takes the samples of its lanes.

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
        self._balance = balance if balance and balance.is_on and world_size > 1 else None
        self._rank, self._world_size = rank, world_size
        everything = Share(range(lanes.lanes), slice=0, slices=1)
        self._share = everything if self._balance else share_of(rank, world_size, lanes.lanes)
        self._seed, self._shuffle, self._negatives = seed, shuffle, negatives
        self._even_steps = config.even_steps if shuffle and config.even_steps.is_on else None
        self._lists = files.files[0].lists
        is_plain = not self._lists and negatives is None and self._balance is None
        are_alike = is_plain and self._share.slices == 1
        for key, section in (("data.balance", self._balance), ("data.even_steps", self._even_steps)):
            for name in section.features if section else ():
                if name not in self._lists:
                    raise InputError(
                        f"{key}.features names '{name}', which has single ids, that all cost the same; leave it out"
                    )
        self._together = max(1, TOGETHER_ROWS * world_size // lanes.global_batch_size) if are_alike else 1
        is_small = files.rows <= len(self._share.lanes) * config.shuffle_window_rows
        # data.select chooses other rows in each epoch.
        self._may_keep = is_small and all(group.choice is None for group in files.row_groups)
        self._kept: KeptRows | None = None
        self._reader = RowGroupReader(files, config)
        fingerprints(config.sparse)  # reads the vocabularies now, before there are threads
        # Makes pyarrow import pandas, if installed, before there are threads. When several threads began this import
        # together, one run of a hundred found a half-imported module.
        pa.array([])

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, the same on every rank."""
        return self._lanes.steps

    def batches(self, start: int, stop: int) -> Generator[Batch, None, None]:
        """Yields the batches of the steps in `[start, stop)`, made in the background; steps count over all epochs.

        Raises:
            InputError: A value in the data is not allowed, or a file is gone or damaged.
            StorageError: A file cannot be read now.
        """
        if self._may_keep and stop > (start // self._lanes.steps + 1) * self._lanes.steps:  # there is a later epoch
            self._kept = KeptRows()
        assembler = ThreadPoolExecutor(1, "assemble")
        threads = self._config.read_threads or _read_threads()
        # The pool of lanes is closed before the pool of columns, because lanes still submit columns to it.
        with ThreadPoolExecutor(threads, "decode") as columns, ThreadPoolExecutor(threads, "read") as lanes:
            pools = _Pools(lanes, columns if threads > 1 and self._reader.columns_at_once else None, threads)
            try:
                depth = -(-self._config.prefetch_batches // self._together)
                for batches in _ahead(self._assemble(start, stop, pools), depth, assembler):
                    yield from batches
            finally:
                assembler.shutdown(cancel_futures=True)
                self._kept = None

    def _assemble(self, start: int, stop: int, pools: "_Pools") -> Iterator[list[Batch]]:
        """Yields lists of batches; the batches of a list are made together."""
        while start < stop:
            epoch, first = divmod(start, self._lanes.steps)
            last = min(self._lanes.steps, first + stop - start)
            together = [range(step, min(step + self._together, last)) for step in range(first, last, self._together)]
            for steps, lanes in zip(together, self._epoch(epoch, together, pools), strict=True):
                scales = [self._world_size / self._lanes.samples_in_step(step) for step in steps]
                log_q = self._negatives.log_q(lanes) if self._negatives else None
                rows, places = self._dealt(lanes)
                yield to_batches(rows, self._config, scales, log_q, places)
            start += last - first

    def _epoch(self, epoch: int, together: list[range], pools: "_Pools") -> Iterator[list[Rows]]:
        """Yields this rank's rows of an epoch lane by lane, for several steps together."""
        streams = self._streams(epoch, together, pools)
        for _ in together:
            yield [self._slice(next(stream)) for stream in streams]

    def _streams(self, epoch: int, together: list[range], pools: "_Pools") -> list[Iterator[Rows]]:
        """Returns, for each lane that this rank reads, an iterator over its rows step by step."""
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

    def _dealt(self, lanes: list[Rows]) -> tuple[list[Rows], np.ndarray | int]:
        """Returns this rank's rows of a step, and their places in the global batch; its rank if it keeps its lanes."""
        if self._balance is None:
            return lanes, self._rank
        whole = Rows.join(lanes)
        places = dealt(costs(whole, self._balance, self._config.costs), self._world_size)[self._rank]
        return [whole.take(places)], places

    def locate(self, step: int, position: int) -> str:
        """Names a sample for messages, by file, row group and row.

        Args:
            step: The step, counted over all epochs; the first is 1.
            position: The sample's position in the global batch, counted rank after rank.
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
        """Returns the position of a sample counted lane after lane, given its position counted rank after rank."""
        if self._balance is None:
            return position
        with ThreadPoolExecutor(1) as pool:
            streams = self._streams(epoch, [range(step, step + 1)], _Pools(pool))
            rows = Rows.join([next(stream) for stream in streams])
        return int(dealt(costs(rows, self._balance, self._config.costs), self._world_size).reshape(-1)[position])

    def _slice(self, rows: Rows) -> Rows:
        """Returns this rank's slice of the rows of a lane in a step."""
        # Ranks that share a lane read the same rows, and each keeps its slice. Files cannot be cut finer than row
        # groups, and the samples of a step must not depend on the number of ranks.
        number, size = self._share.slice, len(rows) // self._share.slices
        return rows if size == len(rows) else rows.slice(number * size, (number + 1) * size)

    def _plan(self, epoch: int, offset: int, lanes: Iterable[int]) -> dict[int, list[ShuffleWindow]]:
        """Returns the shuffle windows of some lanes that hold samples from `offset` on."""
        order = epoch_order(self._files.row_groups, self._seed, epoch, self._shuffle)
        ends, size = ends_of(order), self._config.shuffle_window_rows
        slices = {lane: self._lanes.row_slices(order, ends, lane) for lane in lanes}
        return {lane: [one for one in windows(rows, size) if one.stop > offset] for lane, rows in slices.items()}

    def _order(self, epoch: int, lane: int, window: ShuffleWindow) -> np.ndarray | None:
        """Returns the random order of the rows in a window; None for the order of the files."""
        return window_order(len(window), self._seed, epoch, lane, window.number) if self._shuffle else None

    def _window_rows(
        self, epoch: int, plan: dict[int, list[ShuffleWindow]], pools: "_Pools | None" = None
    ) -> WindowRows:
        """Returns the rows of the windows of some lanes."""
        by_column = partial(self._decode, epoch, pools.columns if pools else None)
        if self._kept:
            kept = partial(self._kept.decode, by_column)
            return WindowRows(chain(*plan.values()), kept, kept)
        # Lanes already keep the threads busy. Decoding columns in parallel helps only where lanes are few, or wait for
        # a row group that they share.
        by_lane = by_column if pools and len(plan) < pools.threads else partial(self._decode, epoch, None)
        return WindowRows(chain(*plan.values()), by_lane, by_column)

    def _read_lane(
        self, epoch: int, lane: int, plan: list[ShuffleWindow], offset: int, rows_of: WindowRows
    ) -> Iterator[Rows]:
        """Yields the shuffled windows of a lane, from the sample at `offset` on."""
        for window in plan:
            order = self._order(epoch, lane, window)
            if order is not None and self._even_steps:
                rows = rows_of(window)
                rows = rows.take(self._evened(order, rows, window))
            else:
                rows = rows_of(window, order)
            yield rows.slice(max(0, offset - window.start), len(window))

    def _evened(self, order: np.ndarray, rows: Rows, window: ShuffleWindow) -> np.ndarray:
        """Regroups the order of the rows in a window so that the steps cost about the same."""
        assert self._even_steps is not None
        sizes = self._lanes.samples_of_steps(window.start, window.stop)
        return dealt_to_steps(order, costs(rows, self._even_steps, self._config.costs), sizes)

    def _decode(
        self, epoch: int, pool: ThreadPoolExecutor | None, row_slice: RowSlice, order: np.ndarray | None
    ) -> Rows:
        """Reads and decodes rows of a row group."""
        with self._reader.open(row_slice.group, epoch) as column:
            rows = range(row_slice.start, row_slice.stop)
            chunk = Chunk(column, rows, partial(self._reader.where, row_slice.group))
            return decode(chunk, self._config, self._lists, order, pool)

    def _steps(self, windows: Iterator[Rows], together: list[range]) -> Iterator[Rows]:
        """Cuts the windows of a lane into the rows of steps that are made together; pads the last step.

        Lanes can differ by a sample. Without padding, a rank whose lanes end early would leave the others waiting in a
        collective.
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
    """Returns half of the rank's cores (the threads that torch computes with), within limits."""
    return min(max(torch.get_num_threads() // 2, LEAST_READ_THREADS), MOST_READ_THREADS)


def _ahead(items: Iterator[T], depth: int, pool: ThreadPoolExecutor) -> Iterator[T]:
    """Yields the items, while the pool makes `depth` items ahead, from now on.

    A depth above 1 needs a pool with a single thread, because two threads cannot advance an iterator together.
    """
    take = partial(pool.submit, next, items, END)
    waiting = deque(take() for _ in range(depth))

    # An inner generator, so that work begins with the call: if `_ahead` itself were a generator, each lane would start
    # only when its first item is needed.
    def wait() -> Iterator[T]:
        while (item := waiting.popleft().result()) is not END:
            waiting.append(take())
            yield item

    return wait()


class _Pools(NamedTuple):
    """The threads of a loader.

    Attributes:
        lanes: Threads that read lanes.
        columns: Threads that decode columns of a row group. Unset: the thread of the lane decodes them.
        threads: Number of threads in each pool.
    """

    lanes: ThreadPoolExecutor
    columns: ThreadPoolExecutor | None = None
    threads: int = 1
