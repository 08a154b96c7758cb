"""Batches ahead of training: threads that read, decode, shuffle and assemble while the model computes."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch

from trainer.data.batch import Batch, to_batch
from trainer.data.decode import Piece, RowGroupReader, decode
from trainer.data.files import FileSet, RowGroup
from trainer.data.lanes import Lanes, ends_of, epoch_order, share_of, spans, window_order, windows
from trainer.data.rows import Rows
from trainer.data.schema import DataConfig

T = TypeVar("T")
END: Any = object()


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
        self._reader = RowGroupReader(list(dict.fromkeys(config.columns)))
        few = len(files.row_groups) <= len(self._share.lanes)  # a small data set stays in memory
        self._read = lru_cache(maxsize=None if few else 0)(self._read_row_group)

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
                batch = to_batch(rows, self._config, self._world_size / self._lanes.rows_in_step(step))
                yield batch.pin_memory() if torch.cuda.is_available() else batch
            start += last - first

    def _epoch(self, epoch: int, first: int, last: int, pool: ThreadPoolExecutor) -> Iterator[Rows]:
        """Yields this rank's rows of the steps in `[first, last)` of an epoch."""
        order = epoch_order(self._files.row_groups, self._seed, epoch, self._shuffle)
        ends, offset = ends_of(order), first * self._lanes.rows_per_step
        streams = [
            self._steps(one_ahead(self._windows(epoch, lane, order, ends, offset), pool)) for lane in self._share.lanes
        ]
        for _ in range(first, last):
            rows = Rows.join([next(stream) for stream in streams])
            part = len(rows) // self._share.parts
            yield rows.slice(self._share.part * part, (self._share.part + 1) * part)

    def _windows(self, epoch: int, lane: int, order: list[RowGroup], ends: np.ndarray, offset: int) -> Iterator[Rows]:
        """Yields a lane's shuffle windows from a row of the lane on."""
        lane_start, _ = self._lanes.bounds(lane)
        read = lru_cache(maxsize=1)(self._read)  # the row group that a window has in common with the next
        for number, start, stop in windows(lane, self._lanes, self._config.shuffle_window_rows):
            if stop <= offset:
                continue
            pieces = [
                Piece(read(span.group).slice(span.start, span.stop - span.start), self._where(span.group), span.start)
                for span in spans(order, ends, lane_start + start, lane_start + stop)
            ]
            shuffled = window_order(stop - start, self._seed, epoch, lane, number) if self._shuffle else None
            yield decode(pieces, self._config, shuffled).slice(max(0, offset - start), stop - start)

    def _where(self, group: RowGroup) -> str:
        return f"{self._files.files[group.file].url}, row group {group.index}, "

    def _steps(self, windows: Iterator[Rows]) -> Iterator[Rows]:
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
            yield Rows.join([*parts, Rows.padding(need, self._config, self._files.files[0].lists)])
            parts, need = [], self._lanes.rows_per_step

    def _read_row_group(self, group: RowGroup) -> pa.Table:
        return self._reader.read(self._files.files[group.file].url, group.index)


def one_ahead(items: Iterator[T], pool: ThreadPoolExecutor) -> Iterator[T]:
    """Returns the items, the next one always being made in the pool already, from now on."""
    first = pool.submit(next, items, END)

    def take(pending: Future[T]) -> Iterator[T]:
        while (item := pending.result()) is not END:
            pending = pool.submit(next, items, END)
            yield item

    return take(first)


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yields the items, up to `depth` of them taken beforehand by a background thread."""
    pool = ThreadPoolExecutor(1, "assemble")
    take = partial(pool.submit, next, items, END)
    try:
        waiting = deque(take() for _ in range(depth))
        while (item := waiting.popleft().result()) is not END:
            waiting.append(take())
            yield item
    finally:
        pool.shutdown(cancel_futures=True)
