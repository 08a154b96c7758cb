"""Finds the line of the first fault in a block that Arrow refuses: Arrow counts rows, from the first of the block."""

import csv
import io
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.core.console import plural

SHOWN = 40  # characters of a value


@dataclass(frozen=True)
class Dialect:
    """The characters between and around values.

    Attributes:
        delimiter: Between columns.
        quote: Around values, or nothing.
        list_separator: Between the ids of a list.
        nulls: The values that mean null.
    """

    delimiter: str
    quote: str
    list_separator: str
    nulls: tuple[str, ...]

    def rows(self, text: str) -> Any:
        """Returns Python's csv reader of a text."""
        quoting = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
        lines = io.StringIO(text, newline="")
        return csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote or None, quoting=quoting)


def find_fault(
    text: bytes, first_line: int, names: Sequence[str], types: Mapping[str, pa.DataType], dialect: Dialect
) -> str | None:
    """Returns the first fault of a block, as `line 7: ...`; None if no known fault is found.

    Args:
        text: The block.
        first_line: The first line of the block.
        names: The columns of the file.
        types: The types of the columns to read.
        dialect: The characters of the file.
    """
    if fault := _stray_quote(text, first_line, dialect):
        return fault
    rows, lines = [], []
    reader = dialect.rows(text.decode(errors="surrogateescape"))
    line = first_line
    try:
        for row in reader:
            if row and len(row) != len(names):
                return (
                    f"line {line}: {plural(len(row), 'value')} between '{shown(dialect.delimiter)}' "
                    f"(data.csv.delimiter), and there are {plural(len(names), 'column')}"
                )
            if row:
                rows.append(row)
                lines.append(line)
            line = first_line + reader.line_num
    except csv.Error:  # a value that is too long for Python's reader
        return None
    columns = zip(*rows, strict=True)
    faults = [
        (row, name, values[row])
        for name, values in zip(names, columns, strict=True)
        if name in types and (row := _first_wrong(values, types[name], dialect)) is not None
    ]
    if not faults:
        return None
    row, name, value = min(faults, key=lambda fault: fault[0])
    return f"line {lines[row]}, column '{name}': {_why(name, value, types[name], dialect)}"


def _stray_quote(text: bytes, first_line: int, dialect: Dialect) -> str | None:
    """Finds a quote that is neither around a value nor doubled, so that quotes cannot separate rows."""
    if not dialect.quote or dialect.quote.encode() not in text:
        return None
    q, d = (re.escape(mark.encode()) for mark in (dialect.quote, dialect.delimiter))
    value = rb"(?:%b(?:[^%b]|%b%b)*+%b|[^%b%b\r\n]*+)" % (q, q, q, q, q, q, d)
    row = re.compile(rb"%b(?:%b%b)*+(?:\r?\n|\Z)" % (value, d, value))
    place = 0
    while place < len(text):
        if not (found := row.match(text, place)):
            line = first_line + text.count(b"\n", 0, place)
            return (
                f"line {line}: a quote stands inside of a value; put quotes around the value and write it twice, or "
                "set data.csv.quote to '' if they mean nothing"
            )
        place = found.end()
    return None


def _first_wrong(values: Sequence[str], kind: pa.DataType, dialect: Dialect) -> int | None:
    """Returns the place of the first value that does not fit a type."""
    if _fits(values, kind, dialect):
        return None
    return bisect_left(range(len(values)), True, key=lambda place: not _fits(values[: place + 1], kind, dialect))


def _fits(values: Sequence[str], kind: pa.DataType, dialect: Dialect) -> bool:
    try:
        array = pa.array([None if value in dialect.nulls else value for value in values], pa.string())
        if pa.types.is_list(kind):
            array = pc.split_pattern(array, dialect.list_separator).cast(kind)  # pyrefly: ignore[missing-attribute]
        elif kind != pa.string():
            pc.utf8_trim_whitespace(array).cast(kind)  # pyrefly: ignore[missing-attribute]
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return False
    return True


def _why(name: str, value: str, kind: pa.DataType, dialect: Dialect) -> str:
    quoted = f"'{shown(value)}'"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{quoted} is not UTF-8"
    if pa.types.is_list(kind):
        between = f"with '{shown(dialect.list_separator)}' between them (data.csv.list_separator)"
        if pa.types.is_floating(kind.value_type):
            return f"{quoted} is not a list of numbers {between}"
        return f"{quoted} is not a list of integers of 64 bits {between}; data.csv.strings names lists of text"
    if pa.types.is_integer(kind):
        return f"{quoted} is not an integer of 64 bits; if ids of '{name}' are text, name it in data.csv.strings"
    return f"{quoted} is not a number; data.csv.nulls has the values that mean null"


def shown(value: str) -> str:
    """Returns the beginning of a value for messages, in one line."""
    text = value.encode("unicode_escape", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
