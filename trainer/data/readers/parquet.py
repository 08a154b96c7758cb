"""Reads Parquet files."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.data.listing import local_version, version_of
from trainer.data.readers.base import Column, FileContents, Statistics

END_BYTES = 1 << 16  # size of the first read from the end of a file; most footers fit in it
MARK_BYTES = 8  # size of the mark behind the footer: its length and four letters
INT96_UNIT = "us"
"""The unit of timestamps of 96 bits, which Spark and Hive write: nanoseconds would wrap around outside 1677 to 2262."""


@dataclass(frozen=True)
class Footer:
    """The footer of a file.

    Attributes:
        metadata: The content of the footer.
        schema: The columns.
        digest: A digest of the footer: it changes with names, types, offsets, sizes and bounds of all columns.
        size_bytes: Size of the file.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    digest: bytes
    size_bytes: int


def read_footer(file: IO[bytes]) -> Footer:
    """Reads the footer of an open file, from storage in one request."""
    size = file.size() if isinstance(file, pa.NativeFile) else file.seek(0, os.SEEK_END)
    end = _end_of(file, size, END_BYTES)
    length = int.from_bytes(end[-MARK_BYTES : -MARK_BYTES // 2], "little") + MARK_BYTES
    if len(end) < length <= size:
        end = _end_of(file, size, length)
    with pq.ParquetFile(pa.BufferReader(end), coerce_int96_timestamp_unit=INT96_UNIT) as parsed:
        digest = hashlib.blake2b(end[-length:], digest_size=8).digest()
        return Footer(parsed.metadata, parsed.schema_arrow, digest, size)


def _end_of(file: IO[bytes], size: int, length: int) -> bytes:
    start = max(0, size - length)
    if isinstance(file, pa.NativeFile):  # several threads may read from it
        return file.read_at(size - start, start)
    file.seek(start)
    return file.read(size - start)


class ParquetReader:
    """Reads Parquet files; keeps the footers of opened files.

    A file that is replaced or written to while a job runs must not go unnoticed. The index of a file is the digest of
    its footer when the files were listed. If the file's version changes, the footer is read again and compared.

    Why not pyarrow.dataset: its scanner reads ahead in its own order and with its own threads. Lanes need given row
    groups at given times, and a rank has a budget of threads.
    """

    format = "Parquet"
    suffix = ".parquet"
    inspects_file_alone = True
    columns_at_once = True

    def __init__(self) -> None:
        # The footers of opened files. Without them, opening a row group would parse the footer of the whole file again.
        self._footers: dict[str, tuple[str, Footer]] = {}  # with the version of the file
        self._digests: dict[str, bytes] = {}
        self._places: dict[str, dict[str, int]] = {}

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a file from its footer."""
        fs, path = fsspec.core.url_to_fs(url)
        with _opened(fs, path) as (file, _):
            footer = read_footer(file)
        rows = tuple(footer.metadata.row_group(i).num_rows for i in range(footer.metadata.num_row_groups))
        return FileContents(footer.size_bytes, rows, footer.schema, footer.digest)

    def use_index(self, url: str, index: bytes) -> None:
        """Receives the digest of the footer that rank 0 read."""
        self._digests[url] = index

    @contextmanager
    def open(self, url: str, row_group: int, columns: Sequence[str]) -> Iterator[Column]:
        """Opens a row group. Reads column by column from a local file, and all columns together from other storage."""
        fs, path = fsspec.core.url_to_fs(url)
        local = isinstance(fs, LocalFileSystem)
        with _opened(fs, path) as (source, version):
            # Pre-buffering joins the byte ranges of columns into few requests. On a local disk it would only copy.
            footer = self._footer(url, source, version())
            with pq.ParquetFile(
                source, metadata=footer.metadata, pre_buffer=not local, coerce_int96_timestamp_unit=INT96_UNIT
            ) as file:
                # Arrow's threads are off: its pool would take all cores of the machine, which belong to other ranks,
                # too. A rank has only data.read_threads threads.
                def read(names: list[str]) -> pa.Table:
                    table = file.read_row_group(row_group, names, use_threads=False)
                    self._footer(url, source, version())  # a file that is overwritten in place stays open
                    return table

                if local:
                    # Column by column, so that a column is used while it is in the processor's cache. In row groups of
                    # the synthetic data, a column takes half a megabyte and all columns take 17.
                    yield lambda name: read([name]).column(name)
                else:
                    # All columns together: every read is a request, with a latency far above that of a cache miss.
                    yield read(list(columns)).column

    def statistics(self, url: str, row_group: int, columns: Sequence[str]) -> dict[str, Statistics]:
        """Returns the statistics of a row group's columns, as far as the footer holds them."""
        if url not in self._footers:
            fs, path = fsspec.core.url_to_fs(url)
            with _opened(fs, path) as (source, version):
                self._footer(url, source, version())
        _, footer = self._footers[url]
        metadata = footer.metadata
        if url not in self._places:  # once per file, because there may be thousands of columns
            self._places[url] = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        places, chunks = self._places[url], metadata.row_group(row_group)
        found = {name: chunks.column(places[name]).statistics for name in columns if name in places}
        return {name: _bounds(one) for name, one in found.items() if one is not None}

    def _footer(self, url: str, source: IO[bytes], version: str) -> Footer:
        """Returns the footer of an open file; reads it again if the file has another version.

        Raises:
            InputError: The footer has changed since the files were listed.
        """
        known, footer = self._footers.get(url, ("", None))
        if footer is None or known != version:
            footer = read_footer(source)
            if self._digests.setdefault(url, footer.digest) != footer.digest:
                raise InputError(
                    f"{without_secrets(url)}: the file was replaced or written to after its footer was read; start the "
                    "job again (if it was not, with an empty data.cache), and leave files alone while they are read"
                )
            self._footers[url] = version, footer
        return footer


@contextmanager
def _opened(fs: AbstractFileSystem, path: str) -> Iterator[tuple[Any, Callable[[], str]]]:
    """Opens a file; returns it with a function for its current version, which makes no request to storage."""
    if isinstance(fs, LocalFileSystem):
        with pa.OSFile(path) as file:
            yield file, lambda: local_version(os.fstat(file.fileno()))
        return
    # Opened here: given a path, pyarrow would send two more requests to an object store.
    with fs.open(path, "rb", cache_type="none") as file:
        version = version_of(file.details if hasattr(file, "details") else fs.info(path))
        yield file, lambda: version


def _bounds(found: pq.Statistics) -> Statistics:
    try:
        low, high = (found.min, found.max) if found.has_min_max else (None, None)
    except UnicodeDecodeError:  # a string that is not UTF-8
        low, high = None, None
    # Bounds of decimals, dates and times are left out: they are not the objects that a filter compares.
    known = isinstance(low, (bool, int, float, str))
    return Statistics(low if known else None, high, found.null_count if found.has_null_count else None)
