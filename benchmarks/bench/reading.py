"""Compares the loader and the data check with other readers of the same columns.

All run on one core and count processor time. Otherwise the loader's threads would win by the number of cores, and lose
to other processes on the machine.
"""

import contextlib
import gzip
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch

from benchmarks.bench.comparison import Comparison, alternate
from benchmarks.bench.setting import TABLE_ROWS
from torchx_recsys.apps.check_data.check_data import check_data
from torchx_recsys.apps.datasets.synthetic import synthetic
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature
from trainer.config.files import CsvConfig
from trainer.config.root import Config
from trainer.data.dataset import FileSet, find_files
from trainer.data.epoch_order import Lanes
from trainer.data.readers.csv import column_types
from trainer.training.session import Session

LANES = 8
SLOW_READER_SHARE = 1 / 100  # fraction of the samples that the slowest reader reads
MOST_ROWS = 1_000_000  # limit on rows with nulls: enough for windows of full length in every lane
IDS = 10 * TABLE_ROWS
NULL_RATE = 0.1
FEW, MANY = 10_000, 50_000  # rows of a check's sample; 50,000 is the default of --rows


def compare_readers(session: Session, repeats: int) -> list[Comparison]:
    """Compares the loader with plain pyarrow, and with a reader that makes a Python object for every value."""
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


def compare_criteo(session: Session, repeats: int) -> list[Comparison]:
    """Compares the loader with plain pyarrow on 13 dense and 26 sparse columns with nulls, ids taken modulo rows."""
    rows = min(session.order.files.rows, MOST_ROWS)
    with TemporaryDirectory() as folder, one_core():
        synthetic(folder, rows, validation_rows=0, test_rows=0, table_rows=(IDS,), null_rate=NULL_RATE)
        sparse = {name: SparseFeature(rows=TABLE_ROWS, ids="modulo") for name in session.config.data.sparse}
        config = session.config.data.model_copy(update={"train": [f"{folder}/train"], "sparse": sparse})
        files = find_files("data.train", config.train, config)
        lanes = Lanes(files.rows, LANES, LANES * math.ceil(config.global_batch_size / LANES))
        loader, arrow = alternate(
            repeats, lambda: rate(load(files, config, lanes)), lambda: rate(read_columns(files, config))
        )
    return [Comparison("loader of nulls, modulo", "pyarrow, same columns", "samples/s", 0.45, loader, arrow)]


def compare_csv(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares the loader on the first file, as CSV, with plain pyarrow; `steps` is unused."""
    if not session.context.is_rank0:
        return []
    with TemporaryDirectory() as folder, one_core():
        plain, packed = _write_csv(session.order.files.files[0].url, Path(folder))
        csv = CsvConfig(cache=f"{folder}/cache")
        config = session.config.data.model_copy(update={"reader": "csv", "csv": csv})
        found, found_packed = (find_files("data.train", [str(file)], config) for file in (plain, packed))
        loader, arrow, loader_packed, arrow_packed, index = alternate(
            repeats,
            lambda: rate(_load_csv(found, config)),
            lambda: rate(_read_csv(plain, config)),
            lambda: rate(_load_csv(found_packed, config)),
            lambda: rate(_read_csv(packed, config)),
            lambda: rate(_index_csv(plain, config)),
        )
    alone = "pyarrow.csv, same columns"
    return [
        Comparison("loader of CSV, one core", alone, "samples/s", 0.4, loader, arrow),
        Comparison("loader of CSV in gz, one core", "pyarrow.csv on gz", "samples/s", 0.4, loader_packed, arrow_packed),
        Comparison("index of CSV, one core", alone, "samples/s", None, index, arrow),
    ]


def compare_check(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares a check of all rows with plain reading of the same columns; `steps` is unused."""
    if not session.context.is_rank0:
        return []
    config, files = session.config, session.order.files
    with one_core():
        many, few, arrow = alternate(
            repeats,
            lambda: rate(_check(config, MANY)),
            lambda: rate(_check(config, FEW)),
            lambda: rate(read_columns(files, config.data)),
        )
    alone = "pyarrow, same columns"
    return [
        Comparison(f"check, figures of {MANY:,} rows", alone, "rows/s", 0.5, many, arrow),
        Comparison(f"check, figures of {FEW:,} rows", alone, "rows/s", 0.5, few, arrow),
    ]


def rate(sizes: Iterable[int]) -> float:
    """Returns samples per second of processor time; `sizes` reads, and yields the number of samples of each read."""
    start = time.process_time()
    return sum(sizes) / (time.process_time() - start)


def load(files: FileSet, config: DataConfig, lanes: Lanes) -> Iterator[int]:
    """Yields the number of samples of each step of the loader, with one read thread, for one core.

    A second thread would compete for the core's cache, at 4 % of the rate; on more cores it pays off.
    """
    config = config.model_copy(update={"read_threads": 1})
    loader = Loader(files, config, lanes, rank=0, world_size=1, seed=0, shuffle=True)
    for step, _ in enumerate(loader.batches(0, lanes.steps)):
        yield lanes.samples_in_step(step)


def read_columns(files: FileSet, config: DataConfig) -> Iterator[int]:
    """Yields the number of samples of each row group, after plain pyarrow has read the columns."""
    for file in files.files:
        with pq.ParquetFile(file.url) as opened:
            for index in range(opened.num_row_groups):
                yield opened.read_row_group(index, config.columns, use_threads=False).num_rows


def _read_objects(files: FileSet, config: DataConfig, limit: int) -> Iterator[int]:
    """Reads the first samples in the way that is easiest to write: dictionaries, stacked to tensors."""
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
    """Keeps this thread and its child threads on one core."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def _write_csv(parquet: str, folder: Path) -> tuple[Path, Path]:
    """Writes the rows of a Parquet file as CSV, plain and compressed."""
    plain, packed = folder / "rows.csv", folder / "rows.csv.gz"
    pa_csv.write_csv(pq.read_table(parquet), plain)
    packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
    return plain, packed


def _load_csv(files: FileSet, config: DataConfig) -> Iterator[int]:
    return load(files, config, Lanes(files.rows, LANES, LANES * math.ceil(config.global_batch_size / LANES)))


def _read_csv(file: Path, config: DataConfig) -> Iterator[int]:
    types = column_types(config)
    table = pa_csv.read_csv(
        pa.OSFile(str(file)) if file.suffix == ".csv" else pa.CompressedInputStream(pa.OSFile(str(file)), "gzip"),
        pa_csv.ReadOptions(use_threads=False, block_size=config.csv.block_bytes),
        convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=[*types]),
    )
    yield table.num_rows


def _index_csv(file: Path, config: DataConfig) -> Iterator[int]:
    with TemporaryDirectory() as cache:
        csv = config.csv.model_copy(update={"cache": cache})
        yield find_files("data.train", [str(file)], config.model_copy(update={"csv": csv})).rows


def _check(config: Config, rows: int) -> Iterator[int]:
    yield check_data(config, rows=rows, all=True)["splits"]["train"]["read"]
