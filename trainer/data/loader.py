"""Batches ahead of training: threads that read, decode, shuffle and assemble while the model computes."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import numpy as np

from trainer.data.batch import Batch, to_batch
from trainer.data.decode import RowGroupReader
from trainer.data.files import FileSet, RowGroup
from trainer.data.lanes import Lanes, epoch_order, share_of, window_order
from trainer.data.rows import Rows, offsets_of
from trainer.data.schema import DataConfig

A = TypeVar("A")
T = TypeVar("T")
END = object()


class Loader:
    """Serves one rank's batches of a data set, from any step on.

    Memory per rank is about two shuffle windows and one row group for each lane that it serves.

    Args:
        files: The data set.
        config: The columns and the reading options.
        lanes: How an epoch falls into lanes and steps.
        rank: This rank.
        world_size: Number of ranks.
        seed: Seed of the shuffling.
        shuffle: Whether to shuffle at all.
    """

    def __init__(
        self, files: FileSet, config: DataConfig, lanes: Lanes, rank: int, world_size: int, seed: int, shuffle: bool
    ) -> None:
        self._files, self._config, self._lanes = files, config, lanes
        self._share, self._world_size = share_of(rank, world_size, lanes.lanes), world_size
        self._seed, self._shuffle = seed, shuffle
        self._reader = RowGroupReader(config)
        self._read = lru_cache(maxsize=len(self._share.lanes) + 1)(self._read_row_group)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch, the same on every rank."""
        return self._lanes.steps

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yields the batches of the steps in `[start, stop)`, counted over all epochs, made ahead in the background.

        Raises:
            ValueError: A value in the data is not allowed, or a file cannot be read.
        """
        with ThreadPoolExecutor(self._config.read_threads, "read") as pool:
            yield from ahead(self._assemble(start, stop, pool), self._config.prefetch_batches)

    def _assemble(self, start: int, stop: int, pool: ThreadPoolExecutor) -> Iterator[Batch]:
        while start < stop:
            epoch, first = divmod(start, self._lanes.steps)
            last = min(self._lanes.steps, first + stop - start)
            for step, rows in enumerate(self._epoch(epoch, first, last, pool), first):
                yield to_batch(rows, self._config, self._world_size / self._lanes.rows_in_step(step))
            start += last - first

    def _epoch(self, epoch: int, first: int, last: int, pool: ThreadPoolExecutor) -> Iterator[Rows]:
        """Yields this rank's rows of the steps in `[first, last)` of an epoch."""
        order = epoch_order(self._files.row_groups, self._seed, epoch, self._shuffle)
        streams = [
            self._lane(epoch, lane, order, first * self._lanes.rows_per_step, pool) for lane in self._share.lanes
        ]
        for _ in range(first, last):
            yield Rows.join([next(stream) for stream in streams])

    def _lane(
        self, epoch: int, lane: int, order: list[RowGroup], offset: int, pool: ThreadPoolExecutor
    ) -> Iterator[Rows]:
        """Yields this rank's part of every step of a lane, from a row of the lane on."""
        starts = offsets_of(np.array([group.rows for group in order]))
        lane_start, _ = self._lanes.bounds(lane)

        def window(number: int, start: int, stop: int) -> Rows:
            rows = self._span(order, starts, lane_start + start, lane_start + stop)
            if self._shuffle:
                rows = rows.take(window_order(len(rows), self._seed, epoch, lane, number))
            return rows.slice(max(0, offset - start), len(rows))

        spans = [span for span in self._window_spans(lane) if span[2] > offset]
        windows = one_ahead(lambda span: window(*span), spans, pool)
        part = self._lanes.rows_per_step // self._share.parts
        for rows in self._steps(windows, order):
            yield rows.slice(self._share.part * part, (self._share.part + 1) * part)

    def _window_spans(self, lane: int) -> Iterator[tuple[int, int, int]]:
        """Yields number, first row and end of a lane's shuffle windows; each lane's begin at other steps, to spread work."""
        size, length = self._config.shuffle_window_rows, self._lanes.length(lane)
        shift = size * lane // self._lanes.lanes
        for number in range(-(-(length + shift) // size)):
            start, stop = max(0, number * size - shift), min(length, (number + 1) * size - shift)
            if start < stop:
                yield number, start, stop

    def _steps(self, windows: Iterator[Rows], order: list[RowGroup]) -> Iterator[Rows]:
        """Cuts windows into steps of equal length, the last padded, and then yields padding for ever."""
        parts: list[Rows] = []
        need = self._lanes.rows_per_step
        for window in windows:
            at = 0
            while len(window) - at >= need:
                yield Rows.join([*parts, window.slice(at, at + need)])
                at, parts, need = at + need, [], self._lanes.rows_per_step
            if at < len(window):
                parts.append(window.slice(at, len(window)))
                need -= len(window) - at
        while True:
            parts = parts or [self._read(order[0]).slice(0, 0)]
            yield Rows.join(parts).pad(need)
            parts, need = [], self._lanes.rows_per_step

    def _span(self, order: list[RowGroup], starts: np.ndarray, start: int, stop: int) -> Rows:
        """Returns the rows in `[start, stop)` of the epoch's sequence, out of the row groups that hold them."""
        first, last = np.searchsorted(starts, [start, stop - 1], side="right") - 1
        return Rows.join(
            [
                self._read(order[i]).slice(max(0, start - starts[i]), min(order[i].rows, stop - starts[i]))
                for i in range(first, last + 1)
            ]
        )

    def _read_row_group(self, group: RowGroup) -> Rows:
        return self._reader.read(self._files.files[group.file].url, group.index)


def one_ahead(make: Callable[[A], T], arguments: Iterable[A], pool: ThreadPoolExecutor) -> Iterator[T]:
    """Yields `make(argument)` for every argument in order, the next one always being made in the pool already."""
    pending = None
    for argument in arguments:
        current, pending = pending, pool.submit(make, argument)
        if current is not None:
            yield current.result()
    if pending is not None:
        yield pending.result()


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yields the items, up to `depth` of them taken beforehand by a background thread."""
    pool = ThreadPoolExecutor(1, "assemble")
    try:
        waiting = deque(pool.submit(next, items, END) for _ in range(depth))
        while (item := waiting.popleft().result()) is not END:
            waiting.append(pool.submit(next, items, END))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
