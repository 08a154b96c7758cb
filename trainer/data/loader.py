"""Makes batches ahead of training: threads read, decode, shuffle and assemble while the model computes.

Not with torch's DataLoader: its workers are processes, which cannot share a row group that several windows need, and
hand every batch over by a copy. Nor with torchdata's, whose saved state fits one number of ranks only, while here the
position is the step. Threads suffice, as Arrow, NumPy and file systems let others run while they work.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from trainer.config.data import DataConfig
from trainer.data.ahead import ahead
from trainer.data.batch import Batch, to_batch
from trainer.data.chunk import Chunk
from trainer.data.dataset import FileSet, RowGroup
from trainer.data.decode import decode
from trainer.data.negatives import Negatives
from trainer.data.order import Lanes, RowSlice, Window, ends_of, epoch_order, share_of, window_order, windows
from trainer.data.row_groups import RowGroupReader, SharedRows, shared
from trainer.data.rows import Rows
from trainer.data.vocabulary import fingerprints


class Loader:
    """Yields one rank's batches of a data set, from any step on.

    Memory per rank is about two shuffle windows for each lane that it serves, and the row groups that more than one
    window needs, decoded: those that are larger than a window, and those where one lane ends and the next begins.

    Args:
        files: The data set.
        config: The columns and the reading options.
        lanes: How an epoch is divided into lanes and steps.
        rank: This rank.
        world_size: Number of ranks.
        seed: Seed of the shuffling.
        shuffle: Whether to shuffle at all.
        negatives: Appends negatives to the samples of each lane; None without a catalogue.
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
    ) -> None:
        self._files, self._config, self._lanes = files, config, lanes
        self._share, self._world_size = share_of(rank, world_size, lanes.lanes), world_size
        self._seed, self._shuffle, self._negatives = seed, shuffle, negatives
        self._lists = files.files[0].lists
        self._reader = RowGroupReader(files, config)
        fingerprints(config)  # reads the vocabularies now, in one thread

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
        with ThreadPoolExecutor(self._config.read_threads, "read") as pool:
            try:
                yield from ahead(self._assemble(start, stop, pool), self._config.prefetch_batches, assembler)
            finally:
                assembler.shutdown(cancel_futures=True)

    def _assemble(self, start: int, stop: int, pool: ThreadPoolExecutor) -> Iterator[Batch]:
        while start < stop:
            epoch, first = divmod(start, self._lanes.steps)
            last = min(self._lanes.steps, first + stop - start)
            for step, lanes in enumerate(self._epoch(epoch, first, last, pool), first):
                scale = self._world_size / self._lanes.samples_in_step(step)
                log_q = self._negatives.log_q(lanes) if self._negatives else None
                batch = to_batch(lanes, self._config, scale, log_q)
                yield batch.pin_memory() if torch.cuda.is_available() else batch
            start += last - first

    def _epoch(self, epoch: int, first: int, last: int, pool: ThreadPoolExecutor) -> Iterator[list[Rows]]:
        """Yields this rank's rows of the steps in `[first, last)` of an epoch, lane by lane."""
        offset = first * self._lanes.samples_per_step
        plan = self._plan(epoch, offset)
        kept = shared(part for lane in plan.values() for window in lane for part in window.row_slices)
        streams = [self._steps(ahead(self._read_lane(epoch, lane, plan[lane], offset, kept), 1, pool)) for lane in plan]
        if self._negatives:
            follow = self._negatives.follow
            streams = [follow(rows, epoch, lane, first) for lane, rows in zip(plan, streams, strict=True)]
        for _ in range(first, last):
            yield [self._part(next(stream)) for stream in streams]

    def _part(self, rows: Rows) -> Rows:
        """Returns this rank's part of a lane's rows in a step."""
        # Ranks of a lane read the same and keep their part: files cannot be cut finer than row groups, and which
        # samples make up a step must not depend on the number of ranks.
        part, size = self._share.part, len(rows) // self._share.parts
        return rows if size == len(rows) else rows.slice(part * size, (part + 1) * size)

    def _plan(self, epoch: int, offset: int) -> dict[int, list[Window]]:
        """Returns, for each of this rank's lanes, the windows that hold its samples from `offset` on."""
        order = epoch_order(self._files.row_groups, self._seed, epoch, self._shuffle)
        ends, size = ends_of(order), self._config.shuffle_window_rows
        lanes = {lane: self._lanes.row_slices(order, ends, lane) for lane in self._share.lanes}
        return {lane: [one for one in windows(rows, size) if one.stop > offset] for lane, rows in lanes.items()}

    def _read_lane(
        self, epoch: int, lane: int, plan: list[Window], offset: int, kept: dict[RowGroup, SharedRows]
    ) -> Iterator[Rows]:
        """Yields a lane's windows, shuffled, from the sample at `offset` on."""
        for window in plan:
            order = window_order(len(window), self._seed, epoch, lane, window.number) if self._shuffle else None
            rows = self._read_window(epoch, window, order, kept)
            yield rows.slice(max(0, offset - window.start), len(window))

    def _read_window(
        self, epoch: int, window: Window, order: np.ndarray | None, kept: dict[RowGroup, SharedRows]
    ) -> Rows:
        if len(window.row_slices) == 1 and window.row_slices[0].group not in kept:
            return self._decode(epoch, window.row_slices[0], order)
        decoded = partial(self._decode, epoch)
        parts = [
            kept[part.group].take(part, decoded) if part.group in kept else decoded(part) for part in window.row_slices
        ]
        rows = Rows.join(parts)
        return rows if order is None else rows.take(order)

    def _decode(self, epoch: int, part: RowSlice, order: np.ndarray | None = None) -> Rows:
        """Decodes rows of a row group: each column while it is in the cache."""
        with self._reader.open(part.group, epoch) as column:
            chunk = Chunk(column, range(part.start, part.stop), partial(self._reader.where, part.group))
            return decode(chunk, self._config, self._lists, order)

    def _steps(self, windows: Iterator[Rows]) -> Iterator[Rows]:
        """Cuts windows into steps of equal length, the last padded, and then yields padding for ever."""
        parts: list[Rows] = []
        need = self._lanes.samples_per_step
        for window in windows:
            at = 0
            while len(window) - at >= need:
                yield Rows.join([*parts, window.slice(at, at + need)])
                at, parts, need = at + need, [], self._lanes.samples_per_step
            if at < len(window):
                parts.append(window.slice(at, len(window)))
                need -= len(window) - at
        # Lanes differ by one sample, and a rank whose lanes are done must not leave the others waiting in a collective.
        while True:
            yield Rows.join([*parts, Rows.padding(need, self._config, self._lists)])
            parts, need = [], self._lanes.samples_per_step
