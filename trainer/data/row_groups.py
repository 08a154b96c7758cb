"""Opens the row groups of a data set."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.data.dataset import FileSet, RowGroup, readable
from trainer.data.files import DataFile
from trainer.data.partitions import with_path_columns
from trainer.data.readers.base import Column, IndexedReader, PlacedReader, Statistics
from trainer.data.readers.registry import make_reader
from trainer.data.selection import Draw, SelectedColumns, row_in_file, select, selecting_columns
from trainer.rules.plain_types import meaning_in_lists


class RowGroupReader:
    """Reads columns of row groups.

    Args:
        files: The data set.
        config: Names the reader.
        columns: The columns. Unset: the columns that training needs.
    """

    def __init__(self, files: FileSet, config: DataConfig, columns: Sequence[str] | None = None) -> None:
        self._files, self._reader = files, make_reader(config)
        self._config, self._columns = config, config.columns if columns is None else [*columns]
        self._indexed = set[int]()  # files whose index the reader has

    @property
    def columns_at_once(self) -> bool:
        """Whether several threads may read columns of an open row group."""
        return getattr(self._reader, "columns_at_once", False)

    @contextmanager
    def open(self, group: RowGroup, epoch: int = 0) -> Iterator[Column]:
        """Opens a row group. A column may be read only when it is asked for.

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
        stored = [name for name in columns if name not in given or given[name].in_file]
        with ExitStack() as stack:
            with readable(refused):
                column = stack.enter_context(self._reader.open(file.url, group.index, stored))

            def read(name: str) -> pa.ChunkedArray:
                with readable(refused):
                    found = column(name)
                _check_as_listed(file, group, name, found, where)
                return found

            if given:
                read = with_path_columns(read, given, file.schema, file.row_groups[group.index], where)
            yield read if group.choice is None else self._select(read, group, epoch)

    def _file(self, group: RowGroup) -> DataFile:
        """Returns the file of a row group, whose index the reader gets first."""
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
        """Returns the bounds of the columns of a row group that have any; raises the same errors as `open`."""
        file = self._file(group)
        given = {one.name: one for one in file.path_columns if one.name in columns and not one.in_file}
        of_path = {name: one.statistics(file.schema.field(name).type, group.rows) for name, one in given.items()}
        if not hasattr(self._reader, "statistics"):
            return of_path
        with readable(f"{self.where(group)}: cannot be read"):
            return self._reader.statistics(file.url, group.index, columns) | of_path

    def where(self, group: RowGroup, row: int | None = None) -> str:
        """Returns the name in messages of a row group, or of a row."""
        file = self._file(group)
        if isinstance(self._reader, PlacedReader):
            return f"{file.name}, {self._reader.place(file.url, group.index, row)}"
        return f"{file.name}, row group {group.index}" + ("" if row is None else f", row {row}")

    def where_row(self, group: RowGroup, row: int, epoch: int) -> str:
        """Returns the name of a read row in messages; if data.select chooses rows, by its number in the file."""
        if group.choice:
            with self.open(group, epoch) as column:
                row = row_in_file(column, row)
        return self.where(group, row)


def _check_as_listed(file: DataFile, group: RowGroup, name: str, found: pa.ChunkedArray, where: str) -> None:
    """Refuses a column with other rows, or of another type, than when the files were listed.

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
