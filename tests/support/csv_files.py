"""CSV files for tests: the rows of Parquet files, and what is read of a text."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from trainer.config.data import DataConfig
from trainer.data.dataset import find_files
from trainer.data.row_groups import RowGroupReader


def csv_config(cache: Path, reader: str = "csv", csv: dict | None = None, **data: object) -> DataConfig:
    """Returns a data section of CSV files with the columns `x`, `id` and `label`, and so on."""
    columns = {"dense": {"x": {}}, "sparse": {"id": {"rows": 1000}}}
    return DataConfig.model_validate(columns | {"reader": reader, "csv": {"cache": str(cache)} | (csv or {})} | data)


def read_all(path: Path, config: DataConfig) -> pa.Table:
    """Returns the columns that training reads of a file or directory, all blocks behind one another."""
    files = find_files("data.train", [str(path)], config)
    reader = RowGroupReader(files, config)
    tables = []
    for group in files.row_groups:
        column = reader.read(group)
        tables.append(pa.table({name: column(name) for name in config.columns}))
        assert tables[-1].num_rows == group.rows
    return pa.concat_tables(tables)


def blocks_of(path: Path, config: DataConfig) -> list[int]:
    """Returns the rows of every block of a file."""
    return [group.rows for group in find_files("data.train", [str(path)], config).row_groups]


def write_alike(parquet: Path, csv: Path, config: DataConfig) -> tuple[Path, Path]:
    """Writes CSV files with the rows of Parquet files, and those again with row groups as the blocks are.

    Returns:
        The directories of the CSV files and of the new Parquet files.
    """
    csv.mkdir()
    same = Path(f"{csv}-as-parquet")
    same.mkdir()
    for file in sorted(parquet.glob("*.parquet")):
        table, target = pq.read_table(file), csv / f"{file.stem}.csv"
        target.write_bytes(as_csv(table))
        with pq.ParquetWriter(same / file.name, table.schema) as writer:
            start = 0
            for rows in blocks_of(target, config):
                writer.write_table(table.slice(start, rows))
                start += rows
            assert start == table.num_rows
    return csv, same


def as_csv(table: pa.Table) -> bytes:
    """Returns a table as Arrow writes it."""
    sink = io.BytesIO()
    pa_csv.write_csv(table, sink)
    return sink.getvalue()
