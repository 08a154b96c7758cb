"""Writes a version as files of Parquet, for stores of other kinds to load.

TO/current.json              the newest version; written last
TO/version-N/about.json      what the version is, and for each table whether its file has all rows
TO/version-N/TABLE.parquet   the columns row and embedding
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torchx_recsys.apps.row_store.changes import Before, about, beside, report, write_tables
from torchx_recsys.apps.row_store.source import Changed, ShardedExport, Table
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import as_file_name
from trainer.run.lock import RunLock

CURRENT, ABOUT = "current.json", "about.json"
LOCK = "versions.lock.json"
NAME = re.compile(r"version-(\d+)")
TYPES = {"float32": pa.float32(), "float16": pa.float16(), "bfloat16": pa.float32()}


def to_files(export: ShardedExport, to: str, all_rows: bool) -> None:
    """Writes the tables of an export as the next version.

    Args:
        export: The export.
        to: The directory, any fsspec URL.
        all_rows: Whether to write all rows.

    Raises:
        InputError: The directory is of something else, or an export is damaged.
    """
    target = RunDirectory(to, "--to")
    lock = RunLock(target, file=LOCK, waits=True)
    lock.take()
    try:
        last = _current(target)
        if last and last["manifest_crc32"] == export.export.crc32 and not all_rows:
            print(f"{export.name} is version-{last['version']} in {without_secrets(to)} already")
            return
        number = _next_number(target)
        before, what = _compared(export, last, all_rows)
        print(f"version-{number} is step {export.signature['step']:,}: {what}", flush=True)
        folder = f"version-{number}"

        def write(table: str, changes: Iterator[Changed]) -> None:
            _write_table(target, f"{folder}/{as_file_name(table)}.parquet", export.tables[table], changes)

        target.fs.makedirs(target.path(folder))
        done = write_tables(export, before, write)
        described = {
            one.table: {
                "file": f"{as_file_name(one.table)}.parquet",
                "rows": one.rows,
                "written": one.written,
                **{key: getattr(export.tables[one.table], key) for key in ("columns", "dtype", "features")},
            }
            for one in done
        }
        after = last["version"] if before and last else None
        target.write_json(f"{folder}/{ABOUT}", about(export, number, done) | {"after": after, "tables": described})
        lock.check()
        target.write_json(CURRENT, {"directory": folder})
    finally:
        lock.release()
    report(done)
    print(f"{folder} is in {without_secrets(to)}")


def _current(target: RunDirectory) -> dict[str, Any] | None:
    """Returns what the newest version is; None if there is none."""
    current = target.read_json(CURRENT)
    if current is None:
        return None
    name = current.get("directory")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(
            f"--to is '{without_secrets(target.url)}', whose {CURRENT} is of something else; name another directory"
        )
    if (found := target.read_json(name, ABOUT)) is None:
        raise target.damaged(CURRENT, why=f"{name}/{ABOUT} is missing")
    return found


def _next_number(target: RunDirectory) -> int:
    """Returns a number that no version has, a killed publisher's included, whose files nobody names."""
    there = [posixpath.basename(path.rstrip("/")) for path in target.fs.glob(target.path("version-*"))]
    return 1 + max((int(found[1]) for name in there if (found := NAME.fullmatch(name))), default=0)


def _compared(export: ShardedExport, last: dict[str, Any] | None, all_rows: bool) -> tuple[Before | None, str]:
    """Returns the version before, None if all rows are to be written, and a phrase on it."""
    if all_rows or last is None:
        return None, "all rows, as --all-rows is True" if all_rows else "all rows, as it is the first"
    try:
        found = beside(export, last["directory"], last["manifest_crc32"])
    except ValueError as error:
        return None, f"all rows, as {error}"
    return found, f"the rows that differ from {last['directory']}, version-{last['version']}"


def _write_table(target: RunDirectory, name: str, table: Table, changes: Iterator[Changed]) -> None:
    schema = pa.schema([("row", pa.int64()), ("embedding", pa.list_(TYPES[table.dtype]))])
    with target.fs.durable(target.path(name)) as file, pq.ParquetWriter(file, schema) as writer:
        for numbers, rows in changes:
            values = _values(rows, table)
            ends = np.arange(0, (len(numbers) + 1) * table.columns, table.columns, dtype=np.int32)
            writer.write_batch(
                pa.record_batch([pa.array(numbers), pa.ListArray.from_arrays(ends, pa.array(values))], schema=schema)
            )


def _values(rows: np.ndarray, table: Table) -> np.ndarray:
    """Returns the numbers of rows, one after the other; bfloat16 as float32."""
    content = np.ascontiguousarray(rows).reshape(-1)
    if table.dtype == "bfloat16":
        return (content.view("<u2").astype("<u4") << 16).view("<f4")
    return content.view({"float32": "<f4", "float16": "<f2"}[table.dtype])
