"""Reads Parquet files."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import fsspec
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from trainer.data.readers.base import Column, FileContents, Statistics


class ParquetReader:
    """Reads Parquet files, and keeps the footers of opened files.

    pyarrow.dataset is not used: its scanner reads ahead in its own order and with its own threads, while lanes need
    given row groups at given times, and a budget of threads per rank.
    """

    format = "Parquet"
    suffix = ".parquet"
    inspects_file_alone = True
    columns_at_once = True

    def __init__(self) -> None:
        # Without this, opening a row group would parse the footer of the whole file again.
        self._footers: dict[str, pq.FileMetaData] = {}
        self._places: dict[str, dict[str, int]] = {}

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a file from its footer."""
        fs, path = fsspec.core.url_to_fs(url)
        # Opened here: by its path, pyarrow would ask an object store twice more what the file is.
        with fs.open(path, "rb", cache_type="none") as file:
            footer, size = pq.read_metadata(file), file.seek(0, os.SEEK_END)
        rows = tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))
        return FileContents(size, rows, footer.schema.to_arrow_schema())

    @contextmanager
    def open(self, url: str, row_group: int, columns: Sequence[str]) -> Iterator[Column]:
        """Opens a row group: column by column in a local file, else all columns at once."""
        fs, path = fsspec.core.url_to_fs(url)
        local = isinstance(fs, LocalFileSystem)
        # Pre-buffering joins the columns' byte ranges into few requests; on a local disk it would only be a copy.
        opened = pq.ParquetFile(path, filesystem=fs, metadata=self._footers.get(url), pre_buffer=not local)
        with opened as file:
            self._footers.setdefault(url, file.metadata)
            # Without Arrow's threads: a rank may use data.read_threads threads, and Arrow's pool takes all cores of
            # the machine, which also belong to other ranks.
            if local:
                # A column that is used before the next is read stays in the cache: in row groups of the synthetic
                # data, one column takes half a megabyte of memory and all columns take 17.
                yield lambda name: file.read_row_group(row_group, [name], use_threads=False).column(name)
            else:
                # Here every read is a request, whose latency is far longer than a cache miss.
                yield file.read_row_group(row_group, list(columns), use_threads=False).column

    def statistics(self, url: str, row_group: int, columns: Sequence[str]) -> dict[str, Statistics]:
        """Returns the bounds of a row group's columns that the footer holds."""
        footer = self._footers.get(url)
        if footer is None:
            fs, path = fsspec.core.url_to_fs(url)
            footer = self._footers.setdefault(url, pq.read_metadata(path, filesystem=fs))
        chunks = footer.row_group(row_group)
        if url not in self._places:  # once per file, which may have thousands of columns
            self._places[url] = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
        places = self._places[url]
        found = {name: chunks.column(places[name]).statistics for name in columns if name in places}
        return {name: _bounds(one) for name, one in found.items() if one is not None}


def _bounds(found: pq.Statistics) -> Statistics:
    try:
        low, high = (found.min, found.max) if found.has_min_max else (None, None)
    except UnicodeDecodeError:  # a string that is not UTF-8
        low, high = None, None
    # The bounds of decimals, dates and times are not the objects that a filter compares.
    known = isinstance(low, (bool, int, float, str))
    return Statistics(low if known else None, high, found.null_count if found.has_null_count else None)
