"""Opens the row groups of a data set, and shares those that several windows need."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock

import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.data.dataset import FileSet, RowGroup, readable
from trainer.data.order import RowSlice
from trainer.data.partitions import with_path_columns
from trainer.data.readers.base import Column, IndexedReader, PlacedReader, Statistics
from trainer.data.readers.registry import make_reader
from trainer.data.rows import Rows
from trainer.data.selection import Draw, SelectedColumns, row_in_file, select, selecting_columns


class RowGroupReader:
    """Reads columns of row groups.

    Args:
        files: The data set.
        config: Names the reader.
        columns: The columns. Unset: those that training needs.
    """

    def __init__(self, files: FileSet, config: DataConfig, columns: Sequence[str] | None = None) -> None:
        self._files, self._reader = files, make_reader(config)
        self._config, self._columns = config, config.columns if columns is None else [*columns]
        for file in files.files:
            if isinstance(self._reader, IndexedReader) and file.index is not None:
                self._reader.use_index(file.url, file.index)

    @contextmanager
    def open(self, group: RowGroup, epoch: int = 0) -> Iterator[Column]:
        """Opens a row group, whose columns may be read only as they are asked for.

        Args:
            group: The row group.
            epoch: Which decides what data.select chooses of it.

        Raises:
            InputError: The file is gone or damaged, or a column has another value than the file's path.
            StorageError: It cannot be read now.
        """
        where, file = self.where(group), self._files.files[group.file]
        refused = f"{where}: cannot be read"
        given = {one.name: one for one in file.path_columns}
        columns = dict.fromkeys([*self._columns, *selecting_columns(group.choice, self._config)])
        stored = [name for name in columns if name not in given or given[name].in_file]
        with ExitStack() as stack:
            with readable(refused):
                column = stack.enter_context(self._reader.open(file.url, group.index, stored))

            def read(name: str) -> pa.ChunkedArray:
                with readable(refused):
                    return column(name)

            if given:
                read = with_path_columns(read, given, file.schema, file.row_groups[group.index], where)
            yield read if group.choice is None else self._select(read, group, epoch)

    def _select(self, read: Column, group: RowGroup, epoch: int) -> SelectedColumns:
        rows = self._files.files[group.file].row_groups[group.index]
        return select(read, rows, self._config, Draw(group, self._files.seed, epoch), self.where(group))

    def read(self, group: RowGroup) -> Column:
        """Reads all columns of a row group into memory; the same errors."""
        with self.open(group) as column:
            columns = {name: column(name) for name in self._columns}.__getitem__
        return replace(column, column=columns) if isinstance(column, SelectedColumns) else columns

    def statistics(self, group: RowGroup, columns: Sequence[str]) -> dict[str, Statistics]:
        """Returns the bounds of those columns of a row group whose format has any; the same errors."""
        file = self._files.files[group.file]
        given = {one.name: one for one in file.path_columns if one.name in columns and not one.in_file}
        of_path = {name: one.statistics(file.schema.field(name).type, group.rows) for name, one in given.items()}
        if not hasattr(self._reader, "statistics"):
            return of_path
        with readable(f"{self.where(group)}: cannot be read"):
            return self._reader.statistics(file.url, group.index, columns) | of_path

    def where(self, group: RowGroup, row: int | None = None) -> str:
        """Returns what messages call a row group, or a row of it."""
        file = self._files.files[group.file]
        if isinstance(self._reader, PlacedReader):
            return f"{file.name}, {self._reader.place(file.url, group.index, row)}"
        return f"{file.name}, row group {group.index}" + ("" if row is None else f", row {row}")

    def where_row(self, group: RowGroup, row: int, epoch: int) -> str:
        """Returns what messages call a row of a row group; of one that data.select chooses of, the row of the file."""
        if group.choice:
            with self.open(group, epoch) as column:
                row = row_in_file(column, row)
        return self.where(group, row)


@dataclass
class SharedRows:
    """Rows of a row group that several windows have parts of: decoded once, and kept until the last one has its part.

    Attributes:
        whole: From the beginning of the first part to the end of the last one.
        uses: Windows that still need a part.
    """

    whole: RowSlice
    uses: int
    _rows: Rows | None = None
    _lock: Lock = field(default_factory=Lock)  # lanes are read by threads, and two may need the same row group

    def take(self, part: RowSlice, decoded: Callable[[RowSlice], Rows]) -> Rows:
        """Returns a part, after `decoded` has made the whole for the first one."""
        with self._lock:
            rows = decoded(self.whole) if self._rows is None else self._rows
            self.uses -= 1
            self._rows = rows if self.uses else None
        return rows.slice(part.start - self.whole.start, part.stop - self.whole.start)


def shared(parts: Iterable[RowSlice]) -> dict[RowGroup, SharedRows]:
    """Returns what is shared of the row groups that occur more than once."""
    # Counting uses replaced two caches by size, which could not know that a row group's last use was over.
    by_group: dict[RowGroup, list[RowSlice]] = {}
    for part in parts:
        by_group.setdefault(part.group, []).append(part)
    return {group: SharedRows(_hull(group, found), len(found)) for group, found in by_group.items() if len(found) > 1}


def _hull(group: RowGroup, parts: Sequence[RowSlice]) -> RowSlice:
    return RowSlice(group, min(part.start for part in parts), max(part.stop for part in parts))
