"""The reader protocol: the files of one format as row groups of Arrow columns."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

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
    """

    size_bytes: int
    row_groups: tuple[int, ...]
    schema: pa.Schema


class Reader(Protocol):
    """Reads files of one format; made without arguments, and used by several threads at once.

    Both methods raise OSError or `pyarrow.ArrowException` for a file that cannot be read.

    Attributes:
        format: The format's name, for messages.
        suffix: How names of its files end: a directory stands for all such files below it.
    """

    format: str
    suffix: str

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a file, without reading its columns."""
        ...

    def open(self, url: str, row_group: int, columns: Sequence[str]) -> AbstractContextManager[Column]:
        """Opens a row group, by its place in the file, of which no other columns than these will be used."""
        ...
