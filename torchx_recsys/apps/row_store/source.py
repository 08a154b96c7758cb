"""Reads an export with tables in shards: its small files, and the rows of its tables in order, in blocks."""

import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from torchx_recsys.apps.export.directory import CURRENT, MANIFEST, SHARDS, read_current, read_export
from torchx_recsys.apps.export.load import TABLES, Export
from trainer.checkpoint.store import FileEntry, add_to, entry_of
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place
from trainer.core.storage import Storage, named

BLOCK_BYTES = 4 << 20  # size of the blocks in which rows are read, compared and sent
BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}
PARITY = "parity.json"  # rows of the user's data, which no reader of a store needs
Rows = np.ndarray
"""The bytes of rows, `[N, bytes of a row]` uint8."""


class DamagedTable(ValueError):
    """A file of a table is missing or damaged."""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        rows: Its rows.
        columns: Its columns.
        dtype: The type of its numbers, such as float32.
        features: The features that read it.
    """

    rows: int
    columns: int
    dtype: str
    features: tuple[str, ...]

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Table":
        """Returns the table of an entry in tables.json."""
        return cls(entry["rows"], entry["columns"], entry["dtype"], tuple(entry["features"]))

    @property
    def row_bytes(self) -> int:
        """The size of a row."""
        return self.columns * BYTES_OF[self.dtype]

    def is_like(self, other: "Table") -> bool:
        """Returns whether rows of both tables can be compared."""
        return (self.columns, self.dtype) == (other.columns, other.dtype)


class Changed(NamedTuple):
    """Rows that differ: their numbers, ascending, and their bytes."""

    numbers: np.ndarray
    rows: Rows


class ShardedExport:
    """An export with tables in shards.

    Args:
        fs: Where it is.
        export: The export.

    Attributes:
        name: The name of its directory, step-N.
        signature: Its signature.
        tables: Its tables by name.
        small: The files that a reader needs beside rows, with size and checksum.

    Raises:
        ValueError: A small file is damaged.
    """

    def __init__(self, fs: Storage, export: Export) -> None:
        self._fs, self.export = fs, export
        self.name = posixpath.basename(export.directory)
        self.small = {
            name: entry for name, entry in export.files.items() if not name.startswith(f"{SHARDS}/") and name != PARITY
        }
        self.signature: dict[str, Any] = json.loads(self._checked("signature.json"))
        self._index = json.loads(self._checked(TABLES))["tables"] if "shards" in self.signature else {}
        self.tables = {name: Table.of(entry) for name, entry in self._index.items()}

    @property
    def fingerprint(self) -> str:
        """Identifies the export."""
        return str(json.loads(self._fs.cat_file(posixpath.join(self.export.directory, MANIFEST)))["fingerprint"])

    def beside(self, name: str) -> "ShardedExport":
        """Returns the export in another directory beside this one.

        Raises:
            ValueError: There is none, or a file is damaged.
        """
        directory = posixpath.join(posixpath.dirname(self.export.directory), name)
        found = ShardedExport(self._fs, read_export(self._fs, directory))
        if not found.tables:
            raise ValueError(f"{name} has no tables in shards")
        return found

    def parts(self, name: str, size: int) -> Iterator[bytes]:
        """Yields a small file in parts of at most some bytes, at least one.

        Raises:
            ValueError: It is damaged.
        """
        entry = entry_of(b"")
        with self._fs.open(posixpath.join(self.export.directory, name), "rb") as file:
            while (part := file.read(size)) or not entry["bytes"]:
                add_to(entry, part)
                yield part
                if not part:
                    break
        self._check(name, entry)

    def stream(self, table: str) -> "RowStream":
        """Returns the rows of a table, in order."""
        return RowStream(self._fs, self.export, self.tables[table], self._index[table]["files"])

    def _checked(self, name: str) -> bytes:
        if name not in self.export.files:
            raise ValueError(f"{name} is missing")
        content = self._fs.cat_file(posixpath.join(self.export.directory, name))
        self._check(name, entry_of(content))
        return content

    def _check(self, name: str, entry: FileEntry) -> None:
        if entry != self.export.files[name]:
            raise ValueError(f"{name} is damaged; copy the directory again")


class RowStream:
    """The rows of a table, read in order; the checksum of each file is compared at its end.

    Args:
        fs: Where the export is.
        export: The export.
        table: The table.
        files: Its files, in order, as in tables.json.

    Attributes:
        lost: Empty; of a store, see StoredRows.
    """

    def __init__(self, fs: Storage, export: Export, table: Table, files: list[dict[str, Any]]) -> None:
        self._fs, self._export, self._row_bytes = fs, export, table.row_bytes
        self._files = iter(files)
        self._file: Any = None
        self._left, self._name, self._entry = 0, "", entry_of(b"")
        self.lost: list[int] = []

    def __enter__(self) -> "RowStream":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file:
            self._file.close()

    def read(self, rows: int) -> Rows:
        """Returns the next rows.

        Raises:
            DamagedTable: A file is missing or damaged.
        """
        parts = []
        while rows:
            if not self._left:
                self._open_next()
            taken = min(rows, self._left)
            parts.append(self._read(taken * self._row_bytes))
            self._left -= taken
            rows -= taken
            if not self._left:
                self._check()
        return np.frombuffer(b"".join(parts), np.uint8).reshape(-1, self._row_bytes)

    def _open_next(self) -> None:
        entry = next(self._files)
        self._name, self._left, self._entry = entry["name"], entry["rows"], entry_of(b"")
        try:
            self._file = self._fs.open(posixpath.join(self._export.directory, self._name), "rb")
        except FileNotFoundError:
            raise DamagedTable(f"{self._name} is missing; copy the directory again") from None

    def _read(self, size: int) -> bytes:
        content = self._file.read(size)
        if len(content) < size:
            raise self._damaged()
        add_to(self._entry, content)
        return content

    def _check(self) -> None:
        self._file.close()
        if self._entry != self._export.files.get(self._name):
            raise self._damaged()

    def _damaged(self) -> DamagedTable:
        return DamagedTable(f"{self._name} is damaged; copy the directory again")


def differing(numbers: np.ndarray, new: Rows, old: Rows, lost: list[int]) -> Changed:
    """Returns the rows that differ in any bit from those of the same numbers.

    Args:
        numbers: The numbers of the rows.
        new: The rows.
        old: The rows of the version before; there may be fewer.
        lost: Numbers of rows that count as different.
    """
    differ = np.ones(len(new), bool)
    differ[: len(old)] = (new[: len(old)] != old).any(axis=1)
    differ |= np.isin(numbers, lost)
    return Changed(numbers[differ], new[differ])


def find_export(url: str) -> ShardedExport:
    """Returns the export in a directory of exports, the one that current.json names, or the one in its own directory.

    Raises:
        InputError: There is no whole export with tables in shards.
    """
    target = RunDirectory(url, "--export")
    with named("--export", url):
        current = read_current(target)
        try:
            found = ShardedExport(target.fs, read_export(target.fs, target.path(*([current] if current else []))))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            where = f"{CURRENT} names {current}: " if current else ""
            make = "" if "damaged" in str(error) else "; make one by `python -m trainer export`"
            raise InputError(f"--export is {place(url)}: {where}{_below(error, target)}{make}") from error
    if not found.tables:
        raise InputError(
            f"--export is {place(url)}, whose {found.name} has its tables in the program; export it with "
            "--shard-bytes, which leaves them out"
        )
    return found


def _below(error: ValueError, target: RunDirectory) -> str:
    """Returns the text of an error with paths below the directory of exports."""
    return str(error).replace(f"{target.path()}/", "").replace(target.path(), "it")
