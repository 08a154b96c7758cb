"""`python -m trainer publish`: the rows of an export to a store that servers read, as a new version."""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple

import pydantic

from torchx_recsys.apps.row_store.changes import Before, OldRows, about, beside, report, write_tables
from torchx_recsys.apps.row_store.connection import is_of_redis
from torchx_recsys.apps.row_store.files import to_files
from torchx_recsys.apps.row_store.protocol import PART_BYTES
from torchx_recsys.apps.row_store.source import Changed, ShardedExport, Table, find_export
from torchx_recsys.apps.row_store.writer import RedisWriter, Version
from trainer.core.console import next_commands, plural, python_command
from trainer.core.errors import InputError
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import named

PREFIX, KEEP = "model", 3
ALLOWED = re.compile(r"[\w.:-]+", re.ASCII)


def publish(
    export: str,
    to: str,
    prefix: str | None = None,
    keep: pydantic.PositiveInt | None = None,
    all_rows: bool = False,
) -> None:
    """Publishes the tables of an export as a new version: to Redis, which servers read, or as files of Parquet.

    The export is one with tables in shards (`export --shard-bytes`). Only rows that differ from those of the version
    before are written, and readers see the version once all are. Takes memory for a few blocks of rows.

    Args:
        export: The directory of exports, whose current.json names one, or one step-N of it, any fsspec URL.
        to: redis://HOST:PORT/DATABASE, rediss:// with TLS, or any other fsspec URL, a directory for Parquet. A password
            is better in the environment variable REDIS_PASSWORD than in the URL.
        prefix: The beginning of the keys in Redis. Unset: model.
        keep: Versions to keep in Redis, so that a reader can be that far behind. Unset: 3.
        all_rows: Write all rows, also those that did not change, such as to a store that has lost some.

    Raises:
        InputError: There is no such export, or the store cannot be used.
    """
    if is_of_redis(to):
        if not ALLOWED.fullmatch(prefix := prefix or PREFIX):
            raise InputError(f"--prefix is '{prefix}'; it takes letters, digits, '.', '_', ':' and '-' alone")
        _to_redis(find_export(export), to, prefix, keep or KEEP, all_rows)
        return
    for flag, value in {"--prefix": prefix, "--keep": keep}.items():
        if value is not None:
            raise InputError(f"{flag} is {value}, but --to is {place(to)}, which is no redis://; leave it out")
    found = find_export(export)
    with named("--to", to):
        to_files(found, to, all_rows)


def _to_redis(export: ShardedExport, to: str, prefix: str, keep: int, all_rows: bool) -> None:
    writer = RedisWriter(to, prefix)
    at_first = writer.current()
    with writer.alone():
        before = writer.current()
        if before and before.about["manifest_crc32"] == export.export.crc32 and not all_rows:
            writer.expire(keep)
            print(f"{export.name} is version {before.number} of '{prefix}' in {without_secrets(to)} already")
            return
        is_of_another = before and (not at_first or before.number != at_first.number)
        if before and is_of_another and before.about["step"] > export.signature["step"]:
            print(f"step {before.about['step']:,} was published meanwhile, and stays the current one")
            return
        _write_version(writer, export, before, prefix, all_rows)
        writer.expire(keep)
        kept = writer.kept()
    print(f"{plural(kept, 'version')} of '{prefix}' {'is' if kept == 1 else 'are'} in {without_secrets(to)}")
    other = "" if prefix == PREFIX else f', prefix="{prefix}"'
    reader = f"from torchx_recsys import StoredModel; print(StoredModel({{}}{other}).signature)"
    print(next_commands(python_command(reader, to)))


def _write_version(
    writer: RedisWriter, export: ShardedExport, last: Version | None, prefix: str, all_rows: bool
) -> None:
    number = writer.begin()
    before, what = _compared(writer, export, last, all_rows)
    print(f"version {number} of '{prefix}' is step {export.signature['step']:,}: {what}", flush=True)
    _hint_at_memory(writer, max(one.row_bytes for one in export.tables.values()))

    def write(table: str, changes: Iterable[Changed]) -> None:
        for changed in changes:
            writer.write_rows(table, changed)

    done = write_tables(export, before, write)
    for table, one in (last.tables if last else {}).items():
        writer.remove_rows(table, export.tables[table].rows if table in export.tables else 0, one.rows)
    for name in export.small:
        writer.write_file(name, export.parts(name, PART_BYTES))
    files = {"files": export.small, "part_bytes": PART_BYTES}
    writer.move(about(export, number, done) | files, export.tables)
    report(done)


class _InStore(NamedTuple):
    """The version before, by the rows that the store has of it."""

    writer: RedisWriter
    version: Version

    @property
    def tables(self) -> dict[str, Table]:
        return self.version.tables

    def stream(self, table: str) -> AbstractContextManager[OldRows]:
        return self.writer.rows_at(self.version, table)


def _compared(
    writer: RedisWriter, export: ShardedExport, last: Version | None, all_rows: bool
) -> tuple[Before | None, str]:
    """Returns the version before, None if all rows are to be written, and a phrase on it."""
    if all_rows or last is None:
        return None, "all rows, as --all-rows is True" if all_rows else "all rows, as it is the first"
    name = str(last.about["directory"])
    try:
        found = beside(export, name, last.about["manifest_crc32"])
    except ValueError as error:
        return _InStore(writer, last), f"the rows that differ from those in the store, as {error}"
    return found, f"the rows that differ from {name}"


def _hint_at_memory(writer: RedisWriter, row_bytes: int) -> None:
    listpack = writer.listpack_bytes()
    if listpack is not None and row_bytes > listpack:
        print(
            f"rows have up to {row_bytes:,} bytes; Redis needs less memory for them with hash-max-listpack-value "
            f"{row_bytes} (now {listpack})",
            flush=True,
        )
