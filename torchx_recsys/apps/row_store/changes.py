"""Finds the rows of an export that differ from those of the version before, in blocks."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from torchx_recsys.apps.engines.progress import progress_bar
from torchx_recsys.apps.row_store.source import (
    BLOCK_BYTES,
    Changed,
    DamagedTable,
    Rows,
    ShardedExport,
    Table,
    differing,
)
from trainer.core.errors import InputError


class OldRows(Protocol):
    """The rows of a table in the version before, in order; `lost` are the rows that the last read did not find."""

    lost: list[int]

    def read(self, rows: int) -> Rows:
        """Returns the next rows."""
        ...


class Before(Protocol):
    """The version before: the export that it was made of, or what the store has."""

    @property
    def tables(self) -> Mapping[str, Table]:
        """Its tables by name."""
        ...

    def stream(self, table: str) -> AbstractContextManager[OldRows]:
        """Returns the rows of a table."""
        ...


class DamagedBefore(Exception):
    """A table of the version before is damaged, so nothing can be compared with it."""


class Written(NamedTuple):
    """What was written of a table."""

    table: str
    rows: int
    written: int
    bytes: int
    seconds: float


def beside(export: ShardedExport, name: str, crc32: int) -> ShardedExport:
    """Returns an export beside another one, by its name and the checksum of its manifest.

    Raises:
        ValueError: It is not there, or another one.
    """
    try:
        found = export.beside(name)
    except (ValueError, OSError) as error:
        raise ValueError(f"{name} is not beside {export.name}, or damaged") from error
    if found.export.crc32 != crc32:
        raise ValueError(f"{name} beside {export.name} is not the one that was published")
    return found


def write_tables(
    export: ShardedExport, before: Before | None, write: Callable[[str, Iterator[Changed]], None]
) -> list[Written]:
    """Writes the rows of all tables that differ, with a progress bar.

    Args:
        export: The export.
        before: The version before. None: all rows are written.
        write: Writes rows of a table. If a table is to be written anew, it is called again.

    Raises:
        InputError: The export is damaged.
    """
    done = []
    with progress_bar(sum(one.rows * one.row_bytes for one in export.tables.values()), "B") as bar:
        for table in export.tables:
            try:
                done.append(_write_table(export, table, before, write, bar))
            except DamagedBefore as error:
                print(f"all rows of table '{table}' are written: of the version before, {error}", flush=True)
                done.append(_write_table(export, table, None, write, bar))
    return done


def _write_table(
    export: ShardedExport,
    table: str,
    before: Before | None,
    write: Callable[[str, Iterator[Changed]], None],
    bar: tqdm,
) -> Written:
    begun, one, written, at = time.monotonic(), export.tables[table], 0, bar.n

    def counted() -> Iterator[Changed]:
        nonlocal written
        for read, changed in _changed_rows(export, table, before):
            written += len(changed.numbers)
            if len(changed.numbers):
                yield changed
            bar.update(at + read * one.row_bytes - bar.n)

    write(table, counted())
    return Written(table, one.rows, written, written * one.row_bytes, time.monotonic() - begun)


def _changed_rows(export: ShardedExport, table: str, before: Before | None) -> Iterator[tuple[int, Changed]]:
    """Yields how many rows of a table are read, and those of the last block that differ."""
    one, known = export.tables[table], before.tables.get(table) if before else None
    size = max(1, BLOCK_BYTES // one.row_bytes)
    is_like = known is not None and one.is_like(known)
    old_rows = known.rows if known and is_like else 0
    with export.stream(table) as new, before.stream(table) if before and is_like else nullcontext() as old:
        for start in range(0, max(one.rows, old_rows), size):
            block = _new_rows(export, new, max(0, min(size, one.rows - start)))
            there = max(0, min(size, old_rows - start))  # also those beyond, for the checksum of their file
            try:
                past = old.read(there) if old and there else block[:0]
            except (DamagedTable, OSError) as error:
                raise DamagedBefore(str(error)) from error
            numbers = np.arange(start, start + len(block))
            yield start + len(block), differing(numbers, block, past[: len(block)], old.lost if old else [])


def _new_rows(export: ShardedExport, new: OldRows, rows: int) -> Rows:
    try:
        return new.read(rows)
    except DamagedTable as error:
        raise InputError(f"--export: {export.name}/{error}") from error
    except OSError as error:
        raise InputError(f"--export: {export.name} cannot be read: {error}; check the network, or copy it") from error


def about(export: ShardedExport, version: int, done: list[Written]) -> dict[str, Any]:
    """Returns what a version is, for its readers and for the next publisher."""
    return {
        "version": version,
        "step": export.signature["step"],
        "model": export.signature["model"],
        "fingerprint": export.fingerprint,
        "directory": export.name,
        "manifest_crc32": export.export.crc32,
        "published": datetime.now().astimezone().isoformat(timespec="seconds"),
        "rows_written": sum(one.written for one in done),
    }


def report(done: list[Written]) -> None:
    """Prints what was written, as a table."""
    total = Written("", *(sum(column) for column in zip(*(one[1:] for one in done), strict=True)))
    lines = [
        [one.table, f"{one.rows:,}", f"{one.written:,}", f"{one.bytes / 2**20:,.1f}", f"{one.seconds:,.1f}"]
        for one in (*done, total._replace(table="all"))
    ]
    columns = ["table", "rows", "written", "MiB", "seconds"]
    print(tabulate(lines, columns, disable_numparse=True, colalign=("left", *["right"] * 4)), flush=True)
