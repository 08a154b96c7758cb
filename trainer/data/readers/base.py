"""The reader protocol: the files of one format as row groups of Arrow columns."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

# Arrow's types are the seam because every format that was weighed (CSV, Arrow IPC, tables services) has an Arrow reader
# already, and decoding needs nulls and lists, which NumPy arrays do not have.
Column = Callable[[str], pa.ChunkedArray]
"""Returns a column of an open row group by its name."""


@dataclass(frozen=True)
class FileContents:
    """The outline of a file.

    Attributes:
        size_bytes: Its size.
        row_groups: The rows of each of its row groups. A format without row groups calls so what it can read alone.
        schema: The names and types of its columns.
        index: What else the readers of other ranks need to open its row groups; see `IndexedReader`.
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
    """Reads files of one format, and is used by several threads at once.

    It is made without arguments, or, if the class has a method `from_config`, by that from the data section.

    Both methods raise OSError or `pyarrow.ArrowException` for a file that cannot be read. A third one is optional,
    `statistics(url, row_group, columns)`: the Statistics of those of the columns that have any, by name. With it, row
    groups in which data.select.filter finds nothing are never read.

    Attributes:
        format: The format's name, for messages.
        suffix: How names of its files end, or several such ends: a directory stands for all such files below it.
    """

    format: str
    suffix: str | tuple[str, ...]

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a file, without reading its columns."""
        ...

    def open(self, url: str, row_group: int, columns: Sequence[str]) -> AbstractContextManager[Column]:
        """Opens a row group, by its place in the file, of which no other columns than these will be used."""
        ...


@runtime_checkable
class IndexedReader(Protocol):
    """What a reader has besides if `open` needs what `inspect` found: only rank 0 inspects."""

    def use_index(self, url: str, index: bytes) -> None:
        """Takes the index that `inspect` returned for a file, on rank 0, before a row group of it is opened."""
        ...


@runtime_checkable
class PlacedReader(Protocol):
    """What a reader has besides if its rows have places in the file that are easier to find than row groups."""

    def place(self, url: str, row_group: int, row: int | None = None) -> str:
        """Returns what messages call a row group, such as `lines 2 to 90`, or a row of it."""
        ...
