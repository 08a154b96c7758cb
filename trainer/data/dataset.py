"""A data set: a sorted list of files on any fsspec URL, their row groups, and whether they have changed."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.errors import InputError, NoRows, StorageError
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, open_storage, os_errors
from trainer.data.columns import check_alike, check_columns, lists_of, texts_of
from trainer.data.partitions import PathColumn, path_types, texts_in_path
from trainer.data.readers.base import FileContents, Reader
from trainer.data.readers.registry import make_reader

FOOTER_THREADS = 16  # reading a footer from an object store takes several requests, one after the other


@dataclass(frozen=True)
class DataFile:
    """One file.

    Attributes:
        url: URL of the file.
        size_bytes: Size of the file.
        row_groups: The rows of each row group.
        schema: The names and types of the columns in the file and in its path; files with equal schemas share one.
        lists: The sparse features that are lists of ids.
        texts: The columns of string ids: sparse features, groups and hard negatives.
        index: The reader's index to open the row groups.
        path_columns: The columns from the path.
    """

    url: str
    size_bytes: int
    row_groups: tuple[int, ...]
    schema: pa.Schema
    lists: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    index: bytes | None = None
    path_columns: tuple[PathColumn, ...] = ()

    @property
    def name(self) -> str:
        """The URL without its secrets, for messages and checkpoints: a signed URL changes every day."""
        return without_secrets(self.url)


@dataclass(frozen=True)
class RowChoice:
    """How data.select chooses rows of a row group.

    Attributes:
        copy: Number of earlier copies of the row group in the epoch.
        matching: Rows that meet the filter; None if all do.
        negatives: Rows that meet the filter and have a first label of 0; 0 if all negatives are kept.
        kept: Number of kept negatives.
    """

    copy: int
    matching: int | None
    negatives: int
    kept: int


@dataclass(frozen=True)
class RowGroup:
    """A row group, by the place of its file in the data set and its place in the file.

    Attributes:
        file: The place of the file.
        index: The place in the file.
        rows: The chosen rows.
        choice: How data.select chooses rows; None for all rows.
    """

    file: int
    index: int
    rows: int
    choice: RowChoice | None = None


@dataclass(frozen=True)
class FileSet:
    """The files of one split, sorted by URL.

    Attributes:
        files: The files, empty ones included.
        chosen: The row groups with rows that data.select chooses; None if all rows are chosen.
        seed: Seed of the choice.
    """

    files: tuple[DataFile, ...]
    chosen: tuple[RowGroup, ...] | None = None
    seed: int = 0

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """All row groups with at least one row, in the order of the files."""
        if self.chosen is not None:
            return [group for group in self.chosen if group.rows]
        return [
            RowGroup(number, index, rows)
            for number, file in enumerate(self.files)
            for index, rows in enumerate(file.row_groups)
            if rows
        ]

    @cached_property
    def rows(self) -> int:
        """Chosen rows of the whole set."""
        return sum(group.rows for group in self.row_groups)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the files, their sizes and their row counts."""
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
                before_bytes, before_rows = plural(old_bytes, "byte"), plural(old_rows, "row")
                return f"{url} had {before_bytes} and {before_rows}, now {new_bytes:,} and {new_rows:,}"
        return "a file has other row groups"


def find_files(
    key: str, patterns: Sequence[str], config: DataConfig, choose: Callable[[list[str]], list[str]] = list
) -> FileSet:
    """Lists the files of a data set, inspects each, and checks their columns.

    Args:
        key: The key or flag that gave the patterns, for messages.
        patterns: Files, globs or directories, on any fsspec URL.
        config: Names the reader, and the columns that every file must have.
        choose: Returns the URLs to keep.

    Raises:
        InputError: The same as `inspect_files`, or a column is missing or has a type that cannot be used.
    """
    names = [*config.columns, *(clause.column for clause in config.select.clauses)]
    return check_files(inspect_files(key, patterns, config, choose, names), config)


def inspect_files(
    key: str,
    patterns: Sequence[str],
    config: DataConfig,
    choose: Callable[[list[str]], list[str]] = list,
    names: Collection[str] | None = None,
) -> FileSet:
    """Lists the files of a data set and inspects each file, without checking its columns.

    Args:
        key: The key or flag that gave the patterns, for messages.
        patterns: Files, globs or directories, on any fsspec URL.
        config: Names the reader.
        choose: Returns the URLs to keep.
        names: The columns that paths may give. Unset: all columns in the paths.

    Raises:
        InputError: There is no pattern, a pattern matches nothing, a file cannot be read, or there are no rows.
    """
    reader = make_reader(config)
    if not patterns:
        raise InputError(f"{key} is empty; name at least one {reader.format} file, glob or directory")
    urls = choose(sorted({url for pattern in patterns for url in list_files(key, pattern, reader)}))
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        contents = list(pool.map(lambda url: _inspect(url, reader), urls))
    files = FileSet(_data_files(urls, contents, names))
    if files.rows == 0:
        where = without_secrets(", ".join(patterns))
        raise NoRows(f"{key} has no rows in its {plural(len(urls), 'file')} ({where}); nothing to read")
    return files


def list_files(key: str, pattern: str, reader: Reader) -> list[str]:
    """Returns the URLs of a file, glob or directory.

    Raises:
        InputError: There is no such file. The message names `key`.
    """
    if found := matching_files(key, pattern, reader):
        return found
    raise InputError(
        f"{key}: no {reader.format} file at '{without_secrets(pattern)}'; check the path, or make the data set first"
    )


def matching_files(key: str, pattern: str, reader: Reader) -> list[str]:
    """Returns the URLs of a file, glob or directory, which need not exist."""
    with named(key, pattern):
        fs, path = open_storage(pattern)
        if "*" in path or "?" in path:
            paths = fs.glob(path)
        elif fs.isdir(path):
            paths = [found for found in fs.find(path) if found.endswith(reader.suffix)]
        else:
            paths = [path] if fs.exists(path) else []
    return [fs.unstrip_protocol(found) if "://" in pattern else found for found in paths]


def check_files(files: FileSet, config: DataConfig) -> FileSet:
    """Checks the columns of files, and returns the files with their lists and texts.

    Raises:
        InputError: A column is missing, has an unusable type, or has different types in two files.
    """
    first: dict[pa.Schema, str] = {}  # the first file with each schema
    for file in files.files:
        if file.schema not in first:
            check_columns(file.name, file.schema, config)
            first[file.schema] = file.name
    check_alike(config, first)
    lists, texts = lists_of(config, first), texts_of(config, first)
    return replace(files, files=tuple(replace(file, lists=lists, texts=texts) for file in files.files))


def _data_files(
    urls: Sequence[str], contents: Sequence[FileContents], names: Collection[str] | None
) -> tuple[DataFile, ...]:
    """Returns the files; columns that only their paths give are in the schema, too."""
    texts = [texts_in_path(url, names) for url in urls]
    types = path_types(texts)
    equal: dict[pa.Schema, pa.Schema] = {}  # equal schemas are one object, which is sent to the ranks once
    files = []
    for url, found, given in zip(urls, contents, texts, strict=True):
        fields = [pa.field(name, types[name]) for name in given if name not in found.schema.names]
        schema = pa.schema([*found.schema, *fields])
        schema = equal.setdefault(schema, schema)
        columns = tuple(PathColumn(name, text, name in found.schema.names) for name, text in given.items())
        files.append(DataFile(url, found.size_bytes, found.row_groups, schema, index=found.index, path_columns=columns))
    return tuple(files)


def _inspect(url: str, reader: Reader) -> FileContents:
    """Returns the outline of a file.

    Raises:
        InputError: The file is not regular, or cannot be read.
    """
    name = without_secrets(url)
    _check_regular(url, name)
    with readable(f"{name}: cannot be read as {reader.format}"):
        return reader.inspect(url)


def _check_regular(url: str, name: str) -> None:
    fs, path = fsspec.core.url_to_fs(url)
    if isinstance(fs, LocalFileSystem) and fs.exists(path) and not fs.isfile(path):
        # Opening a pipe waits for a writer, perhaps for ever.
        raise InputError(f"{name}: is not a regular file, and pipes, devices and directories cannot be read as data")


@contextmanager
def readable(refused: str) -> Iterator[None]:
    """Turns a failure to read a file in the block into an error that begins with `refused`.

    Raises:
        InputError: The file is truncated, gone, or not readable by this user.
        StorageError: Storage failed, and may recover by the next attempt.
    """
    try:
        with os_errors():
            yield
    except (OSError, pa.ArrowException) as error:
        first_line = str(error).strip().split("\n")[0]
        if any(map(_is_damage, (error, error.__cause__))):
            raise InputError(f"{refused}, is it whole? ({first_line})") from error
        kind = StorageError if type(error) is StorageError else InputError  # a missing or refused file stays so
        raise kind(f"{refused} ({first_line})") from error


def _is_damage(error: BaseException | None) -> bool:
    """Returns whether Arrow raises this error for a damaged file: its own class, or an OSError of no system call."""
    return isinstance(error, pa.ArrowException) or (type(error) is OSError and error.errno is None)
