"""How DuckDB reads CSV and TSV: with names and a delimiter that are known before, so that it guesses only the types."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.database import text, texts
from trainer.core.errors import InputError

DELIMITERS = ",;\t|"
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
LINE_BYTES = 1 << 20  # largest length of a header
ENCODING = "utf-8-sig"
REASONS = r"Expected Number|Value with|Invalid unicode|Maximum line size"


@dataclass(frozen=True)
class Csv:
    """How text files are read.

    Attributes:
        columns: Names of the columns of files without a header.
        delimiter: The text between columns. Unset: the most frequent in the header.
        nulls: Texts that mean null, besides an empty one.
    """

    columns: Sequence[str] = ()
    delimiter: str | None = None
    nulls: Sequence[str] = ()


def read_header(shown: str, path: str, options: Csv) -> tuple[list[str], str]:
    """Returns the names of the columns of a text file, and its delimiter.

    Args:
        shown: The file, for messages.
        path: Its path on this host.
        options: How it is read.

    Raises:
        InputError: The first line is not a header, or not text.
    """
    try:
        with pa.input_stream(path, compression="detect") as file:
            line = file.read(LINE_BYTES).decode(ENCODING, errors="ignore").partition("\n")[0].rstrip("\r")
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError(f"{shown} cannot be read: {error}; repair it") from error
    delimiter = options.delimiter or max(DELIMITERS, key=line.count)
    if options.columns:
        return [*options.columns], delimiter
    found = next(csv.reader([line], delimiter=delimiter), []) if len(delimiter) == 1 else line.split(delimiter)
    if numbers := [one for one in found if NUMBER.fullmatch(one)]:
        raise InputError(
            f"{shown}: the first line names a column '{numbers[0]}', so it seems to be a row; name the columns with "
            "--columns"
        )
    if empty := [place for place, one in enumerate(found, 1) if not one]:
        raise InputError(f"{shown}: the first line has no name for column {empty[0]}; name the columns with --columns")
    return found, delimiter


def reading(paths: Sequence[str], delimiter: str, options: Csv) -> str:
    """Returns the call that reads text files."""
    # All rows decide on the types: a text in row 3,000,000 makes the column one of texts.
    return f"read_csv({texts(paths)}, {_form(delimiter, options)}, union_by_name = true, sample_size = -1)"


def wrong_line(
    database: Database, paths: Sequence[str], columns: Sequence[str], delimiter: str, options: Csv, error: Exception
) -> str:
    """Returns what is wrong with text files whose reading has ended with an error, with the line where it is known."""
    for path in paths:
        types = ", ".join(f"{text(one)}: 'VARCHAR'" for one in columns)
        form = _form(delimiter, options, named=False)
        try:  # as texts, with an error of the line instead of one of the form
            call = f"read_csv({texts([path])}, {form}, auto_detect = false, columns = {{{types}}})"
            database.run(f"SELECT count(*) FROM {call}")
        except duckdb.Error as one:
            return f"{path}, {_reason(one)}"
    return _reason(error)


def _reason(error: Exception) -> str:
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = re.search(r"Line: (\d+)", said[0])
    why = next((line.rstrip(".") for line in said[1:] if re.match(REASONS, line)), said[0])
    return f"line {where[1]}: {why}" if where else why


def _form(delimiter: str, options: Csv, named: bool = True) -> str:
    given = [f"delim = {text(delimiter)}", "quote = '\"'", "escape = '\"'", "skip = 0", "comment = ''"]
    given += [f"nullstr = {texts(['', *options.nulls])}", f"header = {not options.columns}"]
    if options.columns and named:
        given.append(f"names = {texts(options.columns)}")
    return ", ".join(given)
