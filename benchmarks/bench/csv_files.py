"""Speed of the loader on CSV files beside plain pyarrow on the same files."""

import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.bench.comparison import Comparison, alternate
from benchmarks.bench.readers import LANES, load, one_core, rate
from trainer.config.csv import CsvConfig
from trainer.config.data import DataConfig
from trainer.data.dataset import FileSet, find_files
from trainer.data.lanes import Lanes
from trainer.data.readers.csv import column_types
from trainer.training.session import Session


def compare_csv(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares the loader on the rows of the first file, as CSV, with plain pyarrow; `steps` has no use here."""
    if not session.context.is_rank0:
        return []
    with TemporaryDirectory() as folder, one_core():
        plain, packed = _write(session.order.files.files[0].url, Path(folder))
        csv = CsvConfig(cache=f"{folder}/cache")
        config = session.config.data.model_copy(update={"reader": "csv", "csv": csv})
        found, found_packed = (find_files("data.train", [str(file)], config) for file in (plain, packed))
        loader, arrow, loader_packed, arrow_packed, index = alternate(
            repeats,
            lambda: rate(_load(found, config)),
            lambda: rate(_read(plain, config)),
            lambda: rate(_load(found_packed, config)),
            lambda: rate(_read(packed, config)),
            lambda: rate(_index(plain, config)),
        )
    alone = "pyarrow.csv, same columns"
    return [
        Comparison("loader of CSV, one core", alone, "samples/s", 0.4, loader, arrow),
        Comparison("loader of CSV in gz, one core", "pyarrow.csv on gz", "samples/s", 0.4, loader_packed, arrow_packed),
        Comparison("index of CSV, one core", alone, "samples/s", None, index, arrow),
    ]


def _write(parquet: str, folder: Path) -> tuple[Path, Path]:
    """Writes the rows of a Parquet file as CSV, plain and compressed."""
    plain, packed = folder / "rows.csv", folder / "rows.csv.gz"
    pa_csv.write_csv(pq.read_table(parquet), plain)
    packed.write_bytes(gzip.compress(plain.read_bytes(), 6))
    return plain, packed


def _load(files: FileSet, config: DataConfig) -> Iterator[int]:
    return load(files, config, Lanes(files.rows, LANES, LANES * math.ceil(config.global_batch_size / LANES)))


def _read(file: Path, config: DataConfig) -> Iterator[int]:
    types = column_types(config)
    table = pa_csv.read_csv(
        pa.OSFile(str(file)) if file.suffix == ".csv" else pa.CompressedInputStream(pa.OSFile(str(file)), "gzip"),
        pa_csv.ReadOptions(use_threads=False, block_size=config.csv.block_bytes),
        convert_options=pa_csv.ConvertOptions(column_types=types, include_columns=[*types]),
    )
    yield table.num_rows


def _index(file: Path, config: DataConfig) -> Iterator[int]:
    with TemporaryDirectory() as cache:
        csv = config.csv.model_copy(update={"cache": cache})
        yield find_files("data.train", [str(file)], config.model_copy(update={"csv": csv})).rows
