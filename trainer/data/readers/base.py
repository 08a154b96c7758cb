"""The reader protocol: the files of one format as row groups of Arrow columns."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

# Readers return Arrow's types because every weighed format (CSV, Arrow IPC, table services) already has an Arrow
# reader, and decoding needs nulls and lists, which NumPy arrays do not have.
Column = Callable[[str], pa.ChunkedArray]
"""Returns a column of an open row group by its name."""


@dataclass(frozen=True)
class FileContents:
    """The outline of a file.

    Attributes:
        size_bytes: Size of the file.
        row_groups: The rows of each row group. In a format without row groups, a row group is a piece that the reader
            can read alone.
        schema: Names and types of the columns.
        index: Data with which readers on other ranks open row groups; see `IndexedReader`.
    """

    size_bytes: int
    row_groups: tuple[int, ...]
    schema: pa.Schema
    index: bytes | None = None


@dataclass(frozen=True)
class Statistics:
    """Bounds of a column's values in a row group.

    Attributes:
        low: No value is less, None if unknown; NaN is not counted.
        high: No value is greater.
        nulls: How many values are null, None if unknown.
    """

    low: Any
    high: Any
    nulls: int | None


class Reader(Protocol):
    """Reads files of one format, for several threads at once.

    A reader is made without arguments, or from the data section by the class's method `from_config`, if any.

    Both methods raise OSError or `pyarrow.ArrowException` for a file that cannot be read. A third method is optional:
    `statistics(url, row_group, columns)` returns the Statistics, by name, of the columns that have any. With it, row
    groups in which data.select.filter finds nothing are never read.

    An optional attribute `inspects_file_alone = True` says that `inspect` depends on nothing but the file. What it
    returns is then kept for the next job, for as long as storage lists the file with the same size and date. Another,
    `columns_at_once = True`, says that several threads may ask an open row group for columns, so that they decode it
    together.

    Attributes:
        format: The format's name, for messages.
        suffix: The end of the names of its files, or several ends. A directory stands for all such files below it.
    """

    format: str
    suffix: str | tuple[str, ...]

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a file, without reading its columns."""
        ...

    def open(self, url: str, row_group: int, columns: Sequence[str]) -> AbstractContextManager[Column]:
        """Opens a row group by its place in the file. Only these columns will be used."""
        ...


@runtime_checkable
class IndexedReader(Protocol):
    """A reader whose `open` needs the index from `inspect`, which only rank 0 calls."""

    def use_index(self, url: str, index: bytes) -> None:
        """Takes the index that `inspect` returned on rank 0 for a file, before a row group of the file is opened."""
        ...


@runtime_checkable
class PlacedReader(Protocol):
    """A reader whose rows have places that are easier to find than row groups, such as lines."""

    def place(self, url: str, row_group: int, row: int | None = None) -> str:
        """Returns the name in messages of a row group, such as `lines 2 to 90`, or of a row."""
        ...
