"""The reader protocol: presents the files of a format as row groups of Arrow columns."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

# Why Arrow's types: CSV, Arrow IPC and table services already have Arrow readers, and decoding needs nulls and lists,
# which NumPy arrays do not have.
Column = Callable[[str], pa.ChunkedArray]
"""Returns a column of an open row group by its name."""


@dataclass(frozen=True)
class FileContents:
    """The outline of a file.

    Attributes:
        size_bytes: Size of the file.
        row_groups: Number of rows in each row group. In a format without row groups, a row group is a piece of the file
            that the reader can read alone.
        schema: Names and types of the columns.
        index: Data that readers on other ranks need to open row groups; see `IndexedReader`.
    """

    size_bytes: int
    row_groups: tuple[int, ...]
    schema: pa.Schema
    index: bytes | None = None


@dataclass(frozen=True)
class Statistics:
    """Statistics of a column in a row group.

    Attributes:
        low: A lower bound of all values but NaN; None if unknown.
        high: An upper bound of all values but NaN.
        nulls: Number of nulls; None if unknown.
    """

    low: Any
    high: Any
    nulls: int | None


class Reader(Protocol):
    """Reads files of one format, for several threads at once.

    A reader is made without arguments, or from the data section by the class's method `from_config`, if any.

    Both methods raise OSError or `pyarrow.ArrowException` for a file that cannot be read. There is an optional third:
    `statistics(url, row_group, columns)` returns the Statistics of columns by name, as far as there are any. With it,
    row groups in which data.select.filter finds nothing are never read.

    Two attributes are optional. `inspects_file_alone = True` means that `inspect` depends on nothing but the file. Its
    result is then cached for later jobs, as long as storage lists the file with the same size and date.
    `columns_at_once = True` means that several threads may read columns of an open row group, to decode it together.

    Attributes:
        format: Name of the format in messages.
        suffix: The ending of the names of its files, or several. A directory stands for all such files below it.
    """

    format: str
    suffix: str | tuple[str, ...]

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a file, without reading its columns."""
        ...

    def open(self, url: str, row_group: int, columns: Sequence[str]) -> AbstractContextManager[Column]:
        """Opens a row group by its number in the file. Only these columns will be used."""
        ...


@runtime_checkable
class IndexedReader(Protocol):
    """A reader whose `open` needs the index that `inspect` returns; only rank 0 calls `inspect`."""

    def use_index(self, url: str, index: bytes) -> None:
        """Receives the index of a file from rank 0, before a row group of the file is opened."""
        ...


@runtime_checkable
class PlacedReader(Protocol):
    """A reader that names rows in messages by something easier to find than row groups, such as lines."""

    def place(self, url: str, row_group: int, row: int | None = None) -> str:
        """Names a row group for messages, such as `lines 2 to 90`, or a row."""
        ...
