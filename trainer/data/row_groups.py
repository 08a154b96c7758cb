"""The row groups of a split: counts the rows that data.select chooses, and opens row groups to read them."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from trainer.config.conditions import Clause
from trainer.config.data import DataConfig, SelectConfig
from trainer.core.console import plural
from trainer.core.errors import InputError, NoRows
from trainer.core.secrets import without_secrets
from trainer.data.dataset import FileSet, RowChoice, RowGroup, find_files, readable
from trainer.data.epoch_order import philox
from trainer.data.files import DataFile, with_path_columns
from trainer.data.history.columns import history_columns
from trainer.data.history.gather import Gatherer
from trainer.data.listing import list_files
from trainer.data.readers.base import Column, IndexedReader, PlacedReader, Statistics
from trainer.data.readers.formats import make_reader
from trainer.data.selection import (
    Draw,
    SelectedColumns,
    by_statistics,
    check_clauses,
    is_negative,
    meets_all,
    row_in_file,
    select,
    selecting_columns,
)
from trainer.rules.plain_types import meaning_in_lists


class RowGroupReader:
    """Opens row groups and reads their columns.

    Args:
        files: The data set.
        config: Names the reader.
        columns: The columns. Unset: the columns that training needs.
    """

    def __init__(self, files: FileSet, config: DataConfig, columns: Sequence[str] | None = None) -> None:
        self._files, self._reader = files, make_reader(config)
        self._config, self._columns = config, config.columns if columns is None else [*columns]
        self._indexed = set[int]()  # files whose index was passed to the reader
        histories = history_columns(config, self._columns)
        self._gatherer = Gatherer(histories, files.files.log) if histories else None

    @property
    def columns_at_once(self) -> bool:
        """Whether several threads may read columns of an open row group."""
        return getattr(self._reader, "columns_at_once", False)

    @contextmanager
    def open(self, group: RowGroup, epoch: int = 0) -> Iterator[Column]:
        """Opens a row group; returns a function that reads a column when it is called.

        Args:
            group: The row group.
            epoch: Decides which rows data.select chooses.

        Raises:
            InputError: The file is gone or damaged, or a column has another value than the file's path.
            StorageError: The file cannot be read now.
        """
        where, file = self.where(group), self._file(group)
        refused = f"{where}: cannot be read"
        given = {one.name: one for one in file.path_columns}
        columns = dict.fromkeys([*self._columns, *selecting_columns(group.choice, self._config)])
        if self._gatherer:
            columns = dict.fromkeys(self._gatherer.instead(columns))
        stored = [name for name in columns if name not in given or given[name].in_file]
        with ExitStack() as stack:
            with readable(refused):
                column = stack.enter_context(self._reader.open(file.url, group.index, stored))

            def read(name: str) -> pa.ChunkedArray:
                try:
                    found = column(name)
                except Exception:  # the context is entered for errors only, because entering it takes 2 us per column
                    with readable(refused):
                        raise
                _check_as_listed(file, group, name, found, where)
                return found

            if given:
                read = with_path_columns(read, given, file.schema, file.row_groups[group.index], where)
            chosen = read if group.choice is None else self._select(read, group, epoch)
            yield self._gatherer.beside(chosen, partial(self.where, group)) if self._gatherer else chosen

    def _file(self, group: RowGroup) -> DataFile:
        """Returns the file of a row group, and passes its index to the reader the first time."""
        file = self._files.files[group.file]
        if group.file not in self._indexed and file.index is not None and isinstance(self._reader, IndexedReader):
            self._reader.use_index(file.url, file.index)
        self._indexed.add(group.file)
        return file

    def _select(self, read: Column, group: RowGroup, epoch: int) -> SelectedColumns:
        rows = self._files.files[group.file].row_groups[group.index]
        return select(read, rows, self._config, Draw(group, self._files.seed, epoch), self.where(group))

    def read(self, group: RowGroup) -> Column:
        """Reads all columns of a row group into memory; raises the same errors as `open`."""
        with self.open(group) as column:
            columns = {name: column(name) for name in self._columns}.__getitem__
        return replace(column, column=columns) if isinstance(column, SelectedColumns) else columns

    def statistics(self, group: RowGroup, columns: Sequence[str]) -> dict[str, Statistics]:
        """Returns the statistics of a row group's columns, if there are any; raises the same errors as `open`."""
        file = self._file(group)
        given = {one.name: one for one in file.path_columns if one.name in columns and not one.in_file}
        of_path = {name: one.statistics(file.schema.field(name).type, group.rows) for name, one in given.items()}
        if not hasattr(self._reader, "statistics"):
            return of_path
        with readable(f"{self.where(group)}: cannot be read"):
            return self._reader.statistics(file.url, group.index, columns) | of_path

    def where(self, group: RowGroup, row: int | None = None) -> str:
        """Names a row group, or a row, for messages."""
        file = self._file(group)
        if isinstance(self._reader, PlacedReader):
            return f"{file.name}, {self._reader.place(file.url, group.index, row)}"
        return f"{file.name}, row group {group.index}" + ("" if row is None else f", row {row}")

    def where_row(self, group: RowGroup, row: int, epoch: int) -> str:
        """Names a row for messages, given its number among the chosen rows."""
        if group.choice:
            with self.open(group, epoch) as column:
                row = row_in_file(column, row)
        return self.where(group, row)


def _check_as_listed(file: DataFile, group: RowGroup, name: str, found: pa.ChunkedArray, where: str) -> None:
    """Refuses a column with another number of rows, or another type, than when the files were listed.

    Raises:
        InputError: The file changed since.
    """
    rows, dtype = file.row_groups[group.index], file.schema.field(name).type
    if len(found) == rows and (found.type == dtype or _means_the_same(found.type, dtype)):
        return
    raise InputError(
        f"{where}: column '{name}' had {plural(rows, 'row')} of type {dtype}, now {len(found):,} of type {found.type}; "
        "the file changed after it was listed: start the job again, and leave files alone while they are read"
    )


def _means_the_same(one: pa.DataType, other: pa.DataType) -> bool:
    found = {meaning_in_lists(dtype, of_ids=True) for dtype in (one, other)} - {None}
    return len(found) < 2


COUNT_THREADS = 16  # more than cores, because counting waits for storage
PROGRESS_SECONDS = 10
FILES = np.iinfo(np.uint64).max  # stands for a file in the random choice of files; no file has this number


@dataclass(frozen=True)
class Counts:
    """Numbers of rows in a row group.

    Attributes:
        matching: Number of rows that meet the filter.
        negatives: Number of matching rows whose first label is 0; 0 if all negatives are kept.
    """

    matching: int
    negatives: int


Find = Callable[[str, Sequence[str], DataConfig, Callable[[list[str]], list[str]]], FileSet]
"""`find_files`, or `inspect_files`, which does not check columns."""


def find_training_files(config: DataConfig, seed: int, find: Find = find_files) -> FileSet:
    """Lists the training files with the samples that data.select chooses.

    Args:
        config: The data.
        seed: Seed of the choice.
        find: Lists the files.

    Raises:
        InputError: The same as `find_files`, or data.select cannot be used with these files.
    """
    select = config.select
    patterns: dict[str, str] = {}

    def choose(urls: list[str]) -> list[str]:
        patterns.update(_patterns_of_files(config, urls))
        return _some_of(urls, select.files, seed)

    files = find("data.train", config.train, config, choose)
    if select == SelectConfig():
        return files
    counts = _count("data.train", files, config, select.keep_negatives < 1)
    chosen = _chosen_groups(config, files, counts, [patterns.get(file.url, "") for file in files.files])
    return _announced("data.train", replace(files, chosen=tuple(chosen), seed=seed), files.rows)


def _chosen_groups(
    config: DataConfig, files: FileSet, counts: Sequence[Counts], patterns: Sequence[str]
) -> list[RowGroup]:
    """Returns the row groups of an epoch, repeated as the mixture requires; `patterns` has a pattern for each file."""
    negatives = np.array([one.negatives for one in counts])
    kept = spread(negatives, np.full(len(counts), config.select.keep_negatives), least=1)
    rows = np.array([one.matching for one in counts]) - negatives + kept
    of_groups = np.array([patterns[group.file] for group in files.row_groups])
    chosen: list[RowGroup] = []
    remainders = np.zeros_like(rows)
    times = np.array([config.select.mixture.get(pattern, 1.0) for pattern in of_groups])
    for pattern in {*patterns}:
        here = of_groups == pattern
        remainders[here] = spread(rows[here], times[here] % 1)
    for place, group in enumerate(files.row_groups):
        sizes = [*[int(rows[place])] * int(times[place]), int(remainders[place])]
        chosen += [
            _chosen(group, copy, counts[place], int(kept[place]), size) for copy, size in enumerate(sizes) if size
        ]
    return chosen


def find_evaluated_files(key: str, patterns: Sequence[str], config: DataConfig, find: Find = find_files) -> FileSet:
    """Lists the files of a split with the samples that meet the filter; arguments and errors are those of `find`."""
    files = find(key, patterns, config, list)
    if not config.select.filter:
        return files
    counts = _count(key, files, config, negatives=False)
    chosen = [_chosen(group, 0, one, 0, one.matching) for group, one in zip(files.row_groups, counts, strict=True)]
    return _announced(key, replace(files, chosen=tuple(chosen)), files.rows)


def spread(counts: np.ndarray, fraction: np.ndarray, least: int = 0) -> np.ndarray:
    """Takes a fraction of each count, `[N]`, rounded so that the results add up to the rounded sum.

    Args:
        counts: The counts, `[N]`.
        fraction: The fraction of each count, in [0, 1], `[N]`.
        least: The smallest result, unless the count is smaller.
    """
    ends = np.floor(np.cumsum(counts * fraction) + 0.5).astype(np.int64)
    return np.maximum(np.diff(ends, prepend=0), np.minimum(counts, least))


def _chosen(group: RowGroup, copy: int, counts: Counts, kept: int, rows: int) -> RowGroup:
    """Returns a row group limited to `rows` of its selected rows."""
    negatives = counts.negatives if kept < counts.negatives else 0
    matching = counts.matching if counts.matching < group.rows else None
    choice = RowChoice(copy, matching, negatives, kept if negatives else 0)
    is_whole = (copy, rows) == (0, group.rows)
    return replace(group, rows=rows, choice=None if is_whole else choice)


def _announced(key: str, files: FileSet, rows: int) -> FileSet:
    if files.rows == 0:
        raise NoRows(f"data.select leaves none of the {plural(rows, 'row')} of {key}; loosen its filter or its mixture")
    found = f"{plural(files.rows, 'sample')} of {plural(rows, 'row')} in {plural(len(files.files), 'file')}"
    print(f"data.select: {found} of {key}", flush=True)
    return files


def _patterns_of_files(config: DataConfig, urls: Sequence[str]) -> dict[str, str]:
    """Returns the pattern of data.select.mixture for each URL that has one.

    Raises:
        InputError: A pattern matches none of the URLs, or two patterns match the same URL.
    """
    reader, found = make_reader(config), dict[str, str]()
    for pattern in config.select.mixture:
        here = set(list_files("data.select.mixture", pattern, reader)["url"].to_pylist()).intersection(urls)
        if not here:
            raise InputError(
                f"data.select.mixture has '{without_secrets(pattern)}', which is none of the files of data.train; "
                "write it as it is written there"
            )
        for url in sorted(here):
            if url in found:
                raise InputError(
                    f"data.select.mixture has '{without_secrets(found[url])}' and '{without_secrets(pattern)}', and "
                    f"both are {without_secrets(url)}; each file has one weight"
                )
            found[url] = pattern
    return found


def _some_of(urls: list[str], fraction: float, seed: int) -> list[str]:
    number = max(1, round(fraction * len(urls)))
    keys = philox(seed, 0, FILES, FILES, stream=2).random_raw(len(urls))
    return [urls[place] for place in np.sort(np.argsort(keys, kind="stable")[:number])]


def _count(key: str, files: FileSet, config: DataConfig, negatives: bool) -> list[Counts]:
    """Counts the rows of every row group that meet the filter; opens a row group only if statistics do not decide."""
    clauses = config.select.clauses
    for schema, file in files.files.first_of_schemas().items():
        check_clauses(clauses, file.name, schema)
    label = [Clause(config.labels[0], "==", (0,))] if negatives else []
    if not clauses and not label:
        return [Counts(group.rows, 0) for group in files.row_groups]
    columns = dict.fromkeys(clause.column for clause in [*clauses, *label])
    reader = RowGroupReader(files, config, [*columns])
    with ThreadPoolExecutor(COUNT_THREADS) as pool:
        counts = pool.map(partial(_count_one, reader, files, config, label), files.row_groups)
        return [*_with_progress(key, counts, len(files.row_groups))]


def _count_one(
    reader: RowGroupReader, files: FileSet, config: DataConfig, label: Sequence[Clause], group: RowGroup
) -> Counts:
    clauses, schema = config.select.clauses, files.files[group.file].schema
    statistics = reader.statistics(group, [clause.column for clause in [*clauses, *label]])
    meets = by_statistics(clauses, schema, statistics, group.rows)
    negative = by_statistics(label, schema, statistics, group.rows) if label else False
    if meets is False:
        return Counts(0, 0)
    if meets and negative is not None:
        return Counts(group.rows, group.rows * negative)
    with reader.open(group) as column:
        found = np.ones(group.rows, bool) if meets else meets_all(clauses, column, group.rows)
        if negative is None:
            return Counts(int(found.sum()), int((found & is_negative(column, config)).sum()))
    return Counts(int(found.sum()), int(found.sum()) * negative)


def _with_progress(key: str, counts: Iterator[Counts], total: int) -> Iterator[Counts]:
    """Passes counts on, and prints the progress from time to time."""
    said = time.monotonic()
    for number, count in enumerate(counts, 1):
        yield count
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            print(f"data.select: counted {number:,} of {plural(total, 'row group')} of {key}", flush=True)
