"""Data sets: a sorted list of files on any fsspec URL, their row groups, and the check whether they have changed."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.errors import InputError, NoRows, StorageError, first_line
from trainer.core.secrets import without_secrets
from trainer.core.storage import os_errors
from trainer.data.columns import check_alike, check_columns, lists_of, texts_of
from trainer.data.file_outlines import find_outlines
from trainer.data.files import DataFiles
from trainer.data.history.columns import HistoryColumns, history_columns
from trainer.data.listing import list_patterns
from trainer.data.readers.base import FileContents, Reader
from trainer.data.readers.formats import NAMES, format_of_bytes, make_reader

ALL = -1  # stands for the number of rows if all rows of a row group are chosen
NO_CHOICE = (-1, ALL, 0, 0)
NAMED_FILES = 10_000  # largest number of files that a checkpoint names; a million would add 100 MB to each checkpoint


@dataclass(frozen=True)
class RowChoice:
    """How data.select chooses rows of a row group.

    Attributes:
        copy: Number of earlier copies of the row group in the epoch.
        matching: Rows that meet the filter; None if all do.
        negatives: Number of rows that meet the filter and have a first label of 0; 0 if all negatives are kept.
        kept: Number of negatives to keep.
    """

    copy: int
    matching: int | None
    negatives: int
    kept: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: the number of its file in the data set, and its number in the file.

    Attributes:
        file: Number of the file in the data set.
        index: Number of the row group in the file.
        rows: Number of chosen rows.
        choice: How data.select chooses rows; None for all rows.
    """

    file: int
    index: int
    rows: int
    choice: RowChoice | None = None


@dataclass(frozen=True)
class FileSet:
    """The files of a split, sorted by URL.

    Attributes:
        files: The files, empty ones included.
        chosen: The row groups with rows that data.select chooses; None if all rows are chosen.
        seed: Seed of the choice.
    """

    files: DataFiles
    chosen: tuple[RowGroup, ...] | None = None
    seed: int = 0

    def __reduce__(self) -> tuple:
        # Cached properties are left out: each rank can compute them.
        return _unpacked, (self.files, None if self.chosen is None else _packed(self.chosen), self.seed)

    @cached_property
    def row_groups(self) -> list[RowGroup]:
        """All row groups with at least one row, in the order of the files."""
        if self.chosen is not None:
            return [group for group in self.chosen if group.rows]
        columns = (column.tolist() for column in self.files.rows_of_groups())
        return [RowGroup(file, index, rows) for file, index, rows in zip(*columns, strict=True) if rows]

    @cached_property
    def rows(self) -> int:
        """Number of chosen rows in the data set."""
        return self._rows_in_files if self.chosen is None else sum(group.rows for group in self.chosen)

    @cached_property
    def _rows_in_files(self) -> int:
        return int(self.files.rows_of_groups()[2].sum())

    @cached_property
    def fingerprint(self) -> str:
        """A digest that changes with the files, their sizes, their row counts and the log of histories."""
        return self._digest(self.files.log[:1])

    def was(self, fingerprint: str) -> bool:
        """Returns whether the rows are those that had a fingerprint; a log of histories may have later events now."""
        return fingerprint in {
            self._digest(self.files.log[place : place + 1]) for place in range(len(self.files.log) or 1)
        }

    def _digest(self, log: tuple[str, ...]) -> str:
        # Not of the contents: reading all data before every resume would take too long.
        digest = hashlib.sha256("".join(log).encode())
        for number, outline in enumerate(self.files.outline()):
            digest.update((", " if number else "[").encode() + repr(outline)[1:-1].encode())
        digest.update(b"]")
        return digest.hexdigest()[:16]

    @cached_property
    def _totals(self) -> dict[str, int]:
        size = int(self.files.columns["size"].to_numpy().sum())
        return {"count": len(self.files), "bytes": size, "rows": self._rows_in_files}

    def _named(self) -> dict[str, list[int]]:
        return {name: [size, sum(groups)] for outline in self.files.outline() for name, size, groups, _ in outline}

    def description(self) -> dict[str, Any]:
        """Returns the description of the data for a checkpoint; `change_since` compares with it."""
        of_files = {"files": self._named()} if len(self.files) <= NAMED_FILES else {}
        of_log = {"log": self.files.log[0]} if self.files.log else {}
        return {"fingerprint": self.fingerprint, **self._totals, **of_files, **of_log}

    def change_since(self, saved: dict[str, Any]) -> str:
        """Describes the first change of these files since an earlier `description`."""
        if saved.get("log", "") not in (self.files.log or [""]):
            return "the log of its histories, data.history.log, has other events"
        if "files" not in saved:
            return self._change_of_totals(saved)
        before, now = saved["files"], self._named()
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

    def _change_of_totals(self, saved: dict[str, int]) -> str:
        """Does the same as `change_since` for a description of too many files to name."""
        now = self._totals
        if all(saved[name] == now[name] for name in now):
            return f"a name, a size or the row groups of a file; of more than {NAMED_FILES:,} files it names none"
        before = (
            f"{plural(saved['count'], 'file')}, {plural(saved['bytes'], 'byte')} and {plural(saved['rows'], 'row')}"
        )
        return f"it had {before}, now {now['count']:,}, {now['bytes']:,} and {now['rows']:,}"


def _packed(chosen: Sequence[RowGroup]) -> tuple[int, pa.Buffer]:
    """Packs row groups for pickling: their number, and their compressed columns.

    A million row groups take 1.5 s and 4 MB; as pickled objects they take 15 s and 50 MB.
    """
    lines = [
        (group.file, group.index, group.rows, *(NO_CHOICE if group.choice is None else _numbers(group.choice)))
        for group in chosen
    ]
    return len(lines), pa.Codec("zstd", 1).compress(np.array(lines, np.int64).T.tobytes())


def _numbers(choice: RowChoice) -> tuple[int, int, int, int]:
    return choice.copy, ALL if choice.matching is None else choice.matching, choice.negatives, choice.kept


def _unpacked(files: DataFiles, packed: tuple[int, pa.Buffer] | None, seed: int) -> FileSet:
    if packed is None:
        return FileSet(files, None, seed)
    number, content = packed
    columns = np.frombuffer(pa.Codec("zstd").decompress(content, 7 * 8 * number, asbytes=True), np.int64)
    chosen = [
        RowGroup(file, index, rows, None if copy < 0 else RowChoice(copy, None if matching < 0 else matching, *of))
        for file, index, rows, copy, matching, *of in columns.reshape(7, number).T.tolist()
    ]
    return FileSet(files, tuple(chosen), seed)


def find_files(
    key: str, patterns: Sequence[str], config: DataConfig, choose: Callable[[list[str]], list[str]] = list
) -> FileSet:
    """Lists the files of a data set, inspects each file, and checks the columns.

    Args:
        key: The key or flag that gave the patterns, for messages.
        patterns: Files, globs or directories, on any fsspec URL.
        config: Names the reader, and the columns that every file must have.
        choose: Returns the URLs to keep.

    Raises:
        InputError: As in `inspect_files`, or a column is missing or has a type that cannot be used.
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
    """Lists the files of a data set and inspects each file; does not check columns.

    Args:
        key: The key or flag that gave the patterns, for messages.
        patterns: Files, globs or directories, on any fsspec URL.
        config: Names the reader.
        choose: Returns the URLs to keep.
        names: The columns to take from paths. Unset: all columns in the paths.

    Raises:
        InputError: There is no pattern, a pattern matches nothing, a file cannot be read, or there are no rows.
    """
    reader = make_reader(config)
    if not patterns:
        raise InputError(f"{key} is empty; name at least one {reader.format} file, glob or directory")
    listed = list_patterns(key, patterns, reader, choose)
    irregular = {*listed.filter(pc.invert(listed["is_regular"]))["url"].to_pylist()}  # pyrefly: ignore

    def inspect(url: str) -> FileContents:
        return _inspect(url, url not in irregular, reader)

    found = DataFiles.of(find_outlines(key, patterns, listed, config, reader, inspect), names)
    files = FileSet(_with_histories(found, history_columns(config, names)))
    if files.rows == 0:
        where = without_secrets(", ".join(patterns))
        raise NoRows(f"{key} has no rows in its {plural(len(listed), 'file')} ({where}); nothing to read")
    return files


def check_files(files: FileSet, config: DataConfig) -> FileSet:
    """Checks the columns of files; returns the files with `lists` and `texts` filled in.

    Raises:
        InputError: A column is missing, has an unusable type, or has different types in two files.
    """
    first = {schema: file.name for schema, file in files.files.first_of_schemas().items()}
    histories = history_columns(config, config.columns)
    for schema, name in first.items():
        if histories:
            histories.check(name, schema)
        check_columns(name, schema, config)
    check_alike(config, first)
    return replace(files, files=replace(files.files, lists=lists_of(config, first), texts=texts_of(config, first)))


def _with_histories(files: DataFiles, histories: HistoryColumns | None) -> DataFiles:
    """Returns files with the columns that are gathered from a log."""
    if not histories:
        return files
    of = {file.schema: file.name for file in files.first_of_schemas().values()}
    layouts = [
        replace(one, schema=pa.schema([*one.schema, *histories.fields_beside(of[one.schema], one.schema)]))
        for one in files.layouts
    ]
    return replace(files, layouts=tuple(layouts), log=histories.log.versions)


def _inspect(url: str, is_regular: bool, reader: Reader) -> FileContents:
    """Returns the outline of a file.

    Raises:
        InputError: The file is not regular, or cannot be read.
    """
    name = without_secrets(url)
    if not is_regular:  # opening a pipe would wait for a writer, perhaps forever
        raise InputError(f"{name}: is not a regular file, and pipes, devices and directories cannot be read as data")
    try:
        with readable(f"{name}: cannot be read as {reader.format}"):
            return reader.inspect(url)
    except InputError as error:
        looks_like = format_of_bytes(url)
        if looks_like is None or NAMES[looks_like] == reader.format:
            raise
        raise InputError(
            f"{name}: cannot be read as {reader.format}, and begins like {NAMES[looks_like]}, which data.reader "
            f"'{looks_like}' reads"
        ) from error


@contextmanager
def readable(refused: str) -> Iterator[None]:
    """Turns a failure to read a file in the block into an error that begins with `refused`.

    Raises:
        InputError: The file is truncated, gone, or not readable by this user.
        StorageError: Storage failed and may have recovered by the next attempt.
    """
    try:
        with os_errors():
            yield
    except (OSError, pa.ArrowException) as error:
        if any(map(_is_damage, (error, error.__cause__))):
            raise InputError(f"{refused}, is it whole? ({first_line(error)})") from error
        # Subclasses of StorageError stand for a missing or refused file: another attempt would find the same.
        kind = StorageError if type(error) is StorageError else InputError
        raise kind(f"{refused} ({first_line(error)})") from error


def _is_damage(error: BaseException | None) -> bool:
    """Returns whether Arrow reports a damaged file: by its own error, or an OSError that comes from no system call."""
    return isinstance(error, pa.ArrowException) or (type(error) is OSError and error.errno is None)
