"""A data set is a sorted list of Parquet files on any fsspec URL."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.core.storage import named, os_errors

FOOTER_THREADS = 16


@dataclass(frozen=True)
class ParquetFile:
    """One file: its URL, its size in bytes, the rows of each of its row groups, and which features are lists."""

    url: str
    size_bytes: int
    row_groups: tuple[int, ...]
    lists: tuple[str, ...]


@dataclass(frozen=True)
class RowGroup:
    """One row group, by the place of its file in the data set and its place in the file."""

    file: int
    index: int
    rows: int


@dataclass(frozen=True)
class FileSet:
    """The files of one split, sorted by URL.

    Attributes:
        files: The files, empty ones included.
    """

    files: tuple[ParquetFile, ...]

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """All row groups that hold at least one row, in file order."""
        return [
            RowGroup(number, index, rows)
            for number, file in enumerate(self.files)
            for index, rows in enumerate(file.row_groups)
            if rows
        ]

    @cached_property
    def rows(self) -> int:
        """Rows of the whole set."""
        return sum(group.rows for group in self.row_groups)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when a file comes, goes, or changes its size or row counts."""
        return hashlib.sha256(repr(self.files).encode()).hexdigest()[:16]

    def description(self) -> dict[str, Any]:
        """Returns the record of the data in a checkpoint, from which `change_since` finds what changed."""
        files = {file.url: [file.size_bytes, sum(file.row_groups)] for file in self.files}
        return {"fingerprint": self.fingerprint, "files": files}

    def change_since(self, saved: dict[str, Any]) -> str:
        """Returns the first change between the data of an earlier `description` and these files."""
        before, now = saved["files"], self.description()["files"]
        for url in sorted(before.keys() | now.keys()):
            if url not in now:
                return f"{url} is gone"
            if url not in before:
                return f"{url} is new"
            if before[url] != now[url]:
                (old_bytes, old_rows), (new_bytes, new_rows) = before[url], now[url]
                return f"{url} had {old_bytes} bytes and {old_rows} rows, now {new_bytes} and {new_rows}"
        return "a file has other row groups"


def find_files(split: str, patterns: Sequence[str], config: DataConfig) -> FileSet:
    """Lists the Parquet files of a split and reads their footers.

    Args:
        split: Name of the split, for messages.
        patterns: Files, globs or directories, on any fsspec URL.
        config: Names the columns that every file must have.

    Raises:
        InputError: No pattern is given, a footer cannot be read, a column is missing or of a type that cannot be used,
            or there are no rows.
        FileNotFoundError: A pattern matches nothing.
    """
    if not patterns:
        raise InputError(f"data.{split} is empty; name at least one Parquet file, glob or directory")
    urls = sorted({url for pattern in patterns for url in _expand(split, pattern)})
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        files = FileSet(tuple(pool.map(lambda url: _read_footer(url, config), urls)))
    for file in files.files:
        if file.lists != files.files[0].lists:
            name = next(iter(set(file.lists) ^ set(files.files[0].lists)))
            raise InputError(
                f"{file.url}: column '{name}' is a list in some files and a single id in others; make them alike"
            )
    if files.rows == 0:
        raise InputError(f"data.{split} has no rows in its {len(urls)} files ({', '.join(patterns)}); nothing to read")
    return files


def _expand(split: str, pattern: str) -> list[str]:
    with named(f"data.{split}", pattern):
        fs, path = fsspec.core.url_to_fs(pattern)
        if "*" in path or "?" in path:
            paths = fs.glob(path)
        elif fs.isdir(path):
            paths = [found for found in fs.find(path) if found.endswith(".parquet")]
        else:
            paths = [path] if fs.exists(path) else []
    if not paths:
        raise InputError(f"data.{split}: no Parquet file at '{pattern}'; check the path, or make the data set first")
    return [fs.unstrip_protocol(found) if "://" in pattern else found for found in paths]


def _read_footer(url: str, config: DataConfig) -> ParquetFile:
    fs, path = fsspec.core.url_to_fs(url)
    try:
        with os_errors(), pq.ParquetFile(path, filesystem=fs) as file:
            metadata, schema = file.metadata, file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{url}: cannot be read as Parquet, is it whole? ({first_line(error)})") from error
    _check_columns(url, schema, config)
    rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    lists = tuple(name for name in config.sparse if is_list(schema.field(name).type))
    return ParquetFile(url, fs.size(path), rows, lists)


def _check_columns(url: str, schema: pa.Schema, config: DataConfig) -> None:
    for name in config.columns:
        if name not in schema.names:
            raise InputError(f"{url}: no column '{name}'; the file has: {', '.join(schema.names)}")
    weight = [config.weight] if config.weight else []
    for name in (*config.dense, *config.labels, *weight):
        dtype = schema.field(name).type
        if not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_boolean(dtype)):
            raise InputError(f"{url}: column '{name}' is of type {dtype}; it must be a number")
    for name, feature in config.sparse.items():
        _check_ids(url, name, schema.field(name).type, feature.ids == "hash")


def _check_ids(url: str, name: str, dtype: pa.DataType, hashed: bool) -> None:
    ids = dtype.value_type if is_list(dtype) else dtype
    if pa.types.is_integer(ids) or (hashed and is_string(ids)):
        return
    allowed = (
        "an integer, a string, or a list of either"
        if hashed
        else f"an integer or a list of integers (strings need data.sparse.{name}.ids = 'hash')"
    )
    raise InputError(f"{url}: column '{name}' is of type {dtype}; it must be {allowed}")


def is_list(dtype: pa.DataType) -> bool:
    """Tells whether a column holds a list of ids per row."""
    return pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype)


def is_string(dtype: pa.DataType) -> bool:
    """Tells whether ids are text, dictionary-encoded or not."""
    if pa.types.is_dictionary(dtype):
        return is_string(dtype.value_type)
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text."""
    return str(error).strip().split("\n")[0]
