"""Speed of the loader beside other readers of the same columns.

All of them on one core, and by the processor time that they take: the loader's threads would otherwise win by the
number of cores, and lose to whatever else the machine does.
"""

import contextlib
import math
import os
import time
from collections.abc import Iterable, Iterator

import pyarrow.parquet as pq
import torch

from benchmarks.bench.comparison import Comparison, alternate
from trainer.config.data import DataConfig
from trainer.data.dataset import FileSet
from trainer.data.lanes import Lanes
from trainer.data.loader import Loader
from trainer.training.session import Session

LANES = 8
SLOW_READER_SHARE = 1 / 100  # the part of the samples that the slowest reader gets


def compare_readers(session: Session, repeats: int) -> list[Comparison]:
    """Compares the loader with plain pyarrow, and with a reader that makes a Python object of every value."""
    config, files = session.config.data, session.order.files
    lanes = Lanes(files.rows, LANES, LANES * math.ceil(config.global_batch_size / LANES))
    with one_core():
        loader, arrow, python = alternate(
            repeats,
            lambda: rate(load(files, config, lanes)),
            lambda: rate(read_columns(files, config)),
            lambda: rate(_read_objects(files, config, math.ceil(files.rows * SLOW_READER_SHARE))),
        )
    return [
        Comparison("loader, one core", "pyarrow, same columns", "samples/s", 0.6, loader, arrow),
        Comparison("loader, one core", "a Python object per value", "samples/s", None, loader, python),
    ]


def rate(sizes: Iterable[int]) -> float:
    """Returns samples per second of processor time, given an iterator that reads and yields how many it has read."""
    start = time.process_time()
    return sum(sizes) / (time.process_time() - start)


def load(files: FileSet, config: DataConfig, lanes: Lanes) -> Iterator[int]:
    """Yields how many samples each step of the loader has, with one read thread, for one core.

    A second thread would only take the core's cache from the first, by 4 % of the rate; on more cores it is worth one.
    """
    config = config.model_copy(update={"read_threads": 1})
    loader = Loader(files, config, lanes, rank=0, world_size=1, seed=0, shuffle=True)
    for step, _ in enumerate(loader.batches(0, lanes.steps)):
        yield lanes.samples_in_step(step)


def read_columns(files: FileSet, config: DataConfig) -> Iterator[int]:
    """Yields how many samples each row group has, once plain pyarrow has read their columns."""
    for file in files.files:
        with pq.ParquetFile(file.url) as opened:
            for index in range(opened.num_row_groups):
                yield opened.read_row_group(index, config.columns, use_threads=False).num_rows


def _read_objects(files: FileSet, config: DataConfig, limit: int) -> Iterator[int]:
    """Reads the first samples the way that is easiest to write: as dictionaries, stacked to tensors."""
    size, left = min(limit, config.global_batch_size), limit
    with pq.ParquetFile(files.files[0].url) as opened:
        for part in opened.iter_batches(size, columns=config.columns, use_threads=False):
            samples = part.to_pylist()
            for names in (config.dense, config.sparse, config.labels):
                torch.tensor([[sample[name] for name in names] for sample in samples])
            left -= len(part)
            yield len(part)
            if left <= 0:
                return


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps this thread, and those that it starts, on one core."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
