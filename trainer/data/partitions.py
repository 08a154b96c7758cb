"""Columns from the paths of files: `country=DE/day=2026-01-01/part-0.parquet`, as Hive and Spark write paths.

`pyarrow.dataset.HivePartitioning` was weighed. Its integers are int32, so ids of 10 digits become strings, with other
hashes; it refuses a column that is null in all paths; 20,000 paths take 0.16 s, here 0.11 s.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from trainer.core.errors import InputError
from trainer.data.readers.base import Column, Statistics
from trainer.rules.plain_types import is_string, to_plain
from trainer.rules.strings import to_texts

NULL = "__HIVE_DEFAULT_PARTITION__"
INTEGER = re.compile(r"-?\d{1,18}")  # 18 digits always fit into 64 bits; Arrow does not read a plus sign


@dataclass(frozen=True)
class PathColumn:
    """A column from the path of a file: one value for all rows.

    Attributes:
        name: Name of the column.
        text: The value in the path, None for a null.
        in_file: Whether the file also has the column, with the same values.
    """

    name: str
    text: str | None
    in_file: bool

    def values(self, dtype: pa.DataType, rows: int) -> pa.ChunkedArray:
        """Returns the column."""
        if self.text is None:
            return pa.chunked_array([pa.nulls(rows, dtype)])
        return pa.chunked_array([pa.repeat(pa.scalar(self.text).cast(dtype), rows)])

    def statistics(self, dtype: pa.DataType, rows: int) -> Statistics:
        """Returns the bounds of the column in a row group, so that filters need not open the file."""
        if self.text is None:
            return Statistics(None, None, rows)
        value = pa.scalar(self.text).cast(dtype).as_py()
        return Statistics(value, value, 0)

    def check(self, column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
        """Returns the file's own column.

        Raises:
            InputError: The column has another value.
        """
        for chunk in column.chunks:
            values = to_plain(chunk)
            wrong = self._equal(values).index(False).as_py()
            if wrong >= 0:
                raise InputError(
                    f"{where}, row {wrong}: column '{self.name}' is {_value(values[wrong:])!r}, but {self.text!r} in "
                    "the path of the file; make them alike, or rename the directory"
                )
        return column

    def _equal(self, values: pa.Array) -> pa.BooleanArray:
        """Returns which values equal the value in the path."""
        if self.text is None:
            return values.is_null()
        values = values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values
        try:
            found = pc.equal(values, pa.scalar(self.text).cast(values.type))  # pyrefly: ignore[missing-attribute]
            return found.fill_null(False)
        except pa.ArrowException:  # the text does not fit the column's type
            return pa.repeat(pa.scalar(False), len(values))


def _value(values: pa.Array) -> Any:
    """Returns the first value."""
    (value,) = to_texts(values[:1]) if is_string(values.type) else values[:1].to_pylist()
    return value


def texts_in_path(url: str, names: Iterable[str] | None = None) -> dict[str, str | None]:
    """Returns the path's values of the columns `names`, as text. Unset: of all columns in the path."""
    folders = url.partition("?")[0].split("/")[:-1]
    pairs = [folder.partition("=") for folder in folders if "=" in folder]
    found = {unquote(name): unquote(text) for name, _, text in pairs}
    return {
        name: None if found[name] == NULL else found[name]
        for name in (found if names is None else names)
        if name in found
    }


def path_types(texts: Sequence[Mapping[str, str | None]]) -> dict[str, pa.DataType]:
    """Returns the type of each column in the paths of a data set: integers if all values are integers, else strings."""
    values: dict[str, list[str]] = {}
    for one in texts:
        for name, text in one.items():
            values.setdefault(name, []).extend([] if text is None else [text])
    return {name: _type(found) for name, found in values.items()}


def _type(texts: Sequence[str]) -> pa.DataType:
    if not texts:
        return pa.null()
    return pa.int64() if all(INTEGER.fullmatch(text) for text in texts) else pa.string()


def with_path_columns(
    column: Column, given: Mapping[str, PathColumn], schema: pa.Schema, rows: int, where: str
) -> Column:
    """Returns the columns of a row group: columns of the file and of its path.

    Args:
        column: Returns a column of the file.
        given: The columns of the path, by name.
        schema: The types of both.
        rows: Rows of the row group.
        where: Name of the row group in messages.
    """

    def read(name: str) -> pa.ChunkedArray:
        if name not in given:
            return column(name)
        if given[name].in_file:
            return given[name].check(column(name), where)
        return given[name].values(schema.field(name).type, rows)

    return read
