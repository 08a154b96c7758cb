"""A data set: a sorted list of files on any fsspec URL, their row groups, and whether they are what they were."""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from trainer.config.data import DataConfig, SparseFeature
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, open_storage, os_errors
from trainer.data.readers.base import FileContents, Reader
from trainer.data.readers.registry import make_reader
from trainer.data.vocabulary import open_vocabulary

TEXT = ("hash", "vocabulary", "managed")  # the rules for ids that take strings, too
FOOTER_THREADS = 16  # a footer costs requests of an object store, which wait for one another on one thread


@dataclass(frozen=True)
class DataFile:
    """One file.

    Attributes:
        url: Where it is.
        size_bytes: Its size.
        row_groups: The rows of each of its row groups.
        schema: The names and types of its columns; files with equal ones share it.
        lists: The sparse features that are lists of ids in it.
        texts: The columns of ids that are strings in it: sparse features, groups and hard negatives.
    """

    url: str
    size_bytes: int
    row_groups: tuple[int, ...]
    schema: pa.Schema
    lists: tuple[str, ...]
    texts: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The URL without its secrets, for messages and checkpoints: a signed URL is another one every day."""
        return without_secrets(self.url)


@dataclass(frozen=True)
class RowGroup:
    """A row group, by the place of its file in the data set and its own in the file."""

    file: int
    index: int
    rows: int


@dataclass(frozen=True)
class FileSet:
    """The files of one split, sorted by URL.

    Attributes:
        files: The files, empty ones included.
    """

    files: tuple[DataFile, ...]

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """All row groups with at least one row, in the order of the files."""
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
        # Sizes and row counts, not contents: reading all data again before every resume would take too long.
        outline = [(file.name, file.size_bytes, file.row_groups, file.lists) for file in self.files]
        return hashlib.sha256(repr(outline).encode()).hexdigest()[:16]

    def description(self) -> dict[str, Any]:
        """Returns the record of the data in a checkpoint, from which `change_since` finds what changed."""
        files = {file.name: [file.size_bytes, sum(file.row_groups)] for file in self.files}
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


def find_files(key: str, patterns: Sequence[str], config: DataConfig) -> FileSet:
    """Lists the files of a data set and inspects each.

    Args:
        key: The key or flag that gave the patterns, for messages.
        patterns: Files, globs or directories, on any fsspec URL.
        config: Names the reader, and the columns that every file must have.

    Raises:
        InputError: No pattern is given or one matches nothing, a file cannot be read, a column is missing or of a type
            that cannot be used, or there are no rows.
    """
    reader = make_reader(config)
    if not patterns:
        raise InputError(f"{key} is empty; name at least one {reader.format} file, glob or directory")
    urls = sorted({url for pattern in patterns for url in list_files(key, pattern, reader)})
    schemas: dict[pa.Schema, pa.Schema] = {}  # equal ones are one object, which all ranks are sent once
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        files = FileSet(tuple(pool.map(lambda url: _inspect(url, reader, config, schemas), urls)))
    for file in files.files:
        if file.lists != files.files[0].lists:
            name = next(iter(set(file.lists) ^ set(files.files[0].lists)))
            raise InputError(
                f"{file.name}: column '{name}' is a list in some files and a single id in others; make them alike"
            )
    if files.rows == 0:
        where = without_secrets(", ".join(patterns))
        raise InputError(f"{key} has no rows in its {len(urls)} files ({where}); nothing to read")
    return files


def list_files(key: str, pattern: str, reader: Reader) -> list[str]:
    """Returns the URLs that a file, glob or directory stands for.

    Raises:
        InputError: There is none; the message names `key`.
    """
    with named(key, pattern):
        fs, path = open_storage(pattern)
        if "*" in path or "?" in path:
            paths = fs.glob(path)
        elif fs.isdir(path):
            paths = [found for found in fs.find(path) if found.endswith(reader.suffix)]
        else:
            paths = [path] if fs.exists(path) else []
    if not paths:
        raise InputError(
            f"{key}: no {reader.format} file at '{without_secrets(pattern)}'; check the path, or make the data "
            "set first"
        )
    return [fs.unstrip_protocol(found) if "://" in pattern else found for found in paths]


def _inspect(url: str, reader: Reader, config: DataConfig, schemas: dict[pa.Schema, pa.Schema]) -> DataFile:
    found = inspect(url, reader)
    schema = found.schema.remove_metadata()
    schema = schemas.setdefault(schema, schema)
    _check_columns(without_secrets(url), schema, config)
    lists = tuple(feature for feature in config.sparse if is_list(schema.field(feature).type))
    hard = [config.catalogue.hard_negatives] if config.catalogue.hard_negatives else []
    ids = dict.fromkeys([*config.sparse, *config.groups, *hard])
    texts = tuple(column for column in ids if is_string(id_type(schema.field(column).type)))
    return DataFile(url, found.size_bytes, found.row_groups, schema, lists, texts)


def inspect(url: str, reader: Reader) -> FileContents:
    """Returns the outline of a file.

    Raises:
        InputError: It is no regular file, or cannot be read.
    """
    name = without_secrets(url)
    _check_regular(url, name)
    with readable(f"{name}: cannot be read as {reader.format}"):
        return reader.inspect(url)


def _check_regular(url: str, name: str) -> None:
    fs, path = fsspec.core.url_to_fs(url)
    if isinstance(fs, LocalFileSystem) and fs.exists(path) and not fs.isfile(path):
        # Opening a pipe waits for a writer, for ever if there is none.
        raise InputError(f"{name}: is not a regular file, and pipes, devices and directories cannot be read as data")


def _check_columns(file: str, schema: pa.Schema, config: DataConfig) -> None:
    for name in config.columns:
        if name not in schema.names:
            raise InputError(f"{file}: no column '{name}'; the file has: {', '.join(schema.names)}")
    weight = [config.weight] if config.weight else []
    for name in (*config.dense, *config.labels, *weight):
        dtype = schema.field(name).type
        if not (pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_boolean(dtype)):
            raise InputError(f"{file}: column '{name}' is of type {dtype}; it must be a number")
    for name in config.groups:
        dtype = schema.field(name).type
        if not (pa.types.is_integer(dtype) or is_string(dtype)):
            raise InputError(f"{file}: column '{name}' is of type {dtype}; a group must be an integer or a string")
    if name := config.catalogue.hard_negatives:
        dtype = schema.field(name).type
        if not (is_list(dtype) and (pa.types.is_integer(dtype.value_type) or is_string(dtype.value_type))):
            raise InputError(
                f"{file}: column '{name}' is of type {dtype}; hard negatives must be a list of integers or strings"
            )
    for name, feature in config.sparse.items():
        _check_ids(file, name, id_type(schema.field(name).type), feature)


def _check_ids(file: str, name: str, dtype: pa.DataType, feature: SparseFeature) -> None:
    text = feature.ids in TEXT
    if not (pa.types.is_integer(dtype) or (text and is_string(dtype))):
        allowed = (
            "an integer, a string, or a list of either"
            if text
            else f"an integer or a list of integers (strings need data.sparse.{name}.ids = 'hash')"
        )
        raise InputError(f"{file}: column '{name}' is of type {dtype}; it must be {allowed}")
    if feature.ids == "vocabulary" and open_vocabulary(name, feature).is_text != is_string(dtype):
        kinds = ("integers", "strings") if is_string(dtype) else ("strings", "integers")
        raise InputError(
            f"{file}: column '{name}' has ids of type {dtype}, but data.sparse.{name}.vocabulary is one of {kinds[0]}; "
            f"name one of {kinds[1]}"
        )


def id_type(dtype: pa.DataType) -> pa.DataType:
    """Returns the type of a column's ids, which may be in lists."""
    return dtype.value_type if is_list(dtype) else dtype


def is_list(dtype: pa.DataType) -> bool:
    """Returns whether a column holds a list of ids per row."""
    return pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype)


def is_string(dtype: pa.DataType) -> bool:
    """Returns whether ids are text, dictionary-encoded or not."""
    if pa.types.is_dictionary(dtype):
        return is_string(dtype.value_type)
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)


@contextmanager
def readable(refused: str) -> Iterator[None]:
    """Turns a failure to read a file in the block into an InputError that begins with `refused`."""
    try:
        with os_errors():
            yield
    except (OSError, pa.ArrowException) as error:
        first_line = str(error).strip().split("\n")[0]
        raise InputError(f"{refused}, is it whole? ({first_line})") from error
