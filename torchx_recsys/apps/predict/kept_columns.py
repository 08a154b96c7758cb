"""Columns of any Arrow type that are copied from a data set to an output unchanged."""

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.config.data import DataConfig
from trainer.core.errors import InputError, nearest
from trainer.data.dataset import FileSet, RowGroup
from trainer.data.epoch_order import RowSlice, ends_of, row_slices
from trainer.data.row_groups import RowGroupReader
from trainer.rules.plain_types import has_values

ALL = "*"


def kept_schema(key: str, names: Sequence[str], files: FileSet) -> pa.Schema:
    """Returns names and types of the columns to keep.

    Args:
        key: The flag that names the columns.
        names: The columns, or `*` for all.
        files: The data set.

    Raises:
        InputError: A file lacks a column or has another type for it, or Parquet cannot store the column.
    """
    if not names:
        return pa.schema([])
    first = files.files[0].schema
    wanted = first.names if ALL in names else names
    for file in files.files:
        extra = [name for name in file.schema.names if name not in wanted] if ALL in names else []
        _check(key, file.name, extra, wanted, file.schema, first)
    schema = pa.schema([pa.field(name, _type_in_all(key, name, files)) for name in wanted])
    _check_parquet(key, schema)
    return schema


def _check(
    key: str, file: str, extra: Collection[str], wanted: Sequence[str], schema: pa.Schema, first: pa.Schema
) -> None:
    for name in (*extra, *wanted):
        if schema.names.count(name) > 1:
            raise InputError(
                f"{file}: more than one column '{name}', of which none can be kept; name the other columns in {key}"
            )
        if wanted.count(name) > 1:
            raise InputError(f"{key} has '{name}' twice; name each column once")
        if name in extra or (name not in schema.names and name in first.names):
            raise InputError(
                f"{file}: column '{name}' is in some files and not in others; name the columns to keep in {key}"
            )
        if name not in schema.names:
            raise InputError(f"{key} has '{name}', which {file} does not{nearest(name, schema.names)}")


def _type_in_all(key: str, name: str, files: FileSet) -> pa.DataType:
    """Returns the type of a column in all files. Files without a value in the column may not know the type."""
    types = {file.name: file.schema.field(name).type for file in files.files}
    known = {file: dtype for file, dtype in types.items() if has_values(dtype)}
    (first, there), *others = (known or types).items()
    for file, here in others:
        if here != there:
            raise InputError(
                f"{file}: column '{name}' is of type {here}, but {there} in {first}; make them alike, or leave it out "
                f"of {key}"
            )
    return there


def _check_parquet(key: str, schema: pa.Schema) -> None:
    for field in schema:
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except pa.ArrowException as error:
            raise InputError(
                f"column '{field.name}' is of type {field.type}, which Parquet cannot store; leave it out of {key}"
            ) from error


class KeptColumns:
    """Reads ranges of the columns to keep.

    Args:
        files: The data set.
        config: Names the reader.
        schema: The columns.
    """

    def __init__(self, files: FileSet, config: DataConfig, schema: pa.Schema) -> None:
        self._groups, self._schema = files.row_groups, schema
        self._ends = ends_of(self._groups)
        self._reader = RowGroupReader(files, config, schema.names)
        self._latest: tuple[RowGroup, pa.Table] | None = None

    def read(self, start: int, stop: int) -> dict[str, pa.ChunkedArray]:
        """Returns the columns of the rows in `[start, stop)` of the data set.

        Raises:
            InputError: A file is gone or damaged.
        """
        if not self._schema.names:
            return {}
        slices = row_slices(self._groups, self._ends, start, stop)
        table = pa.concat_tables([self._slice(one) for one in slices])
        return dict(zip(table.column_names, table.columns, strict=True))

    def _slice(self, rows: RowSlice) -> pa.Table:
        if self._latest is None or self._latest[0] != rows.group:  # the next range needs the rest of a large row group
            column = self._reader.read(rows.group)
            self._latest = rows.group, pa.table([column(name) for name in self._schema.names], schema=self._schema)
        return self._latest[1].slice(rows.start, len(rows))
