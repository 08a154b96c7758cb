"""Reads a log, or a file of items or users, into a table of DuckDB."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from torchx_recsys.apps.engines.source import guess_reader
from torchx_recsys.apps.split.database import Database, kind, name, text, texts
from trainer.config.data import DataConfig
from trainer.config.files import CSV_READERS
from trainer.core.errors import InputError, nearest
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, open_storage
from trainer.data.listing import list_patterns
from trainer.data.readers.formats import NAMES, make_reader

ROW = "#row"
"""The column of a table that numbers its rows in the order of files and lines."""
Reading = Callable[[Sequence[str]], str]
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
STORED = {
    "UUID": "CAST({} AS VARCHAR)",
    "HUGEINT": "CAST({} AS DOUBLE)",
    "UHUGEINT": "CAST({} AS DOUBLE)",
    "INTERVAL": "epoch({})",
}
"""What is read in place of a column, for types that Parquet or the trainer lack; durations are seconds."""


@dataclass(frozen=True)
class Csv:
    """How text files are read.

    Attributes:
        columns: Names of the columns of files without a header.
        delimiter: The text between columns. Unset: found by DuckDB.
        nulls: Texts that mean null, besides an empty one.
    """

    columns: Sequence[str] = ()
    delimiter: str | None = None
    nulls: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """Rows in DuckDB.

    Attributes:
        files: The number of files that they come from.
        types: The DuckDB type of each column, in the order of the files, without `ROW`.
        left_out: Columns that are not read, each with the reason.
    """

    files: int
    types: Mapping[str, str]
    left_out: Mapping[str, str]

    def column(self, flag: str, given: str) -> str:
        """Returns a column that a flag names, with or without quotes.

        Raises:
            InputError: There is no such column.
        """
        for one in (given, given.strip(), given.strip().removeprefix('"').removesuffix('"').replace('""', '"')):
            if one in self.types:
                return one
        if given in self.left_out:
            raise InputError(f"{flag} names '{given}', a column {self.left_out[given]}; name another one")
        raise InputError(f"{flag} names '{given}', which is no column{nearest(given, self.types)}")


def read_table(database: Database, flag: str, source: Sequence[str], table: str, csv: Csv, folder: Path) -> Table:
    """Reads files into a table.

    Args:
        database: The database.
        flag: The flag that names the files.
        source: Files, globs or directories, on any fsspec URL.
        table: Name of the table to make.
        csv: How text files are read.
        folder: A local directory, to which files of other storage are copied.

    Raises:
        InputError: A file cannot be read, the files differ in their columns, or there is no row.
    """
    reader = "csv" if csv.columns or csv.delimiter else guess_reader(source)
    if reader not in ("parquet", *CSV_READERS):
        raise InputError(f"{flag} has files of {NAMES[reader]}; CSV, TSV and Parquet can be read here")
    urls = list_patterns(flag, source, make_reader(DataConfig(reader=reader)))["url"].to_pylist()
    paths = [_local(flag, url, folder / str(number)) for number, url in enumerate(urls)]
    read = _reading(reader, csv)
    try:
        types = _common_types(database, flag, urls, paths, read)
        left_out = {one: f"of type {dtype}, which is not looked at" for one, dtype in types.items() if _is_other(dtype)}
        chosen = [_stored(one, dtype) for one, dtype in types.items() if one not in left_out]
        query = f"CREATE TABLE {table} AS SELECT row_number() OVER () AS {name(ROW)}, {', '.join(chosen)} FROM "
        database.run(query + read(paths))
    except duckdb.Error as error:
        raise InputError(f"{flag} cannot be read: {_reason(error, paths, urls)}") from error
    if not database.value(f"SELECT count(*) FROM {table}"):
        raise InputError(f"{flag} has no rows: {without_secrets(' '.join(source))}; name files with at least one")
    stored = database.types(table)
    del stored[ROW]
    return Table(len(urls), stored, left_out)


def _local(flag: str, url: str, folder: Path) -> str:
    """Returns the path of a file on this host, which is a copy if its storage is not mounted."""
    if url.endswith(".bz2"):
        raise InputError(f"{flag}: {without_secrets(url)} is packed by bzip2, which DuckDB cannot read; unpack it")
    with named(flag, url):
        fs, path = open_storage(url)
        if fs.is_local:
            return path
        *above, file = path.split("/")
        copy = folder.joinpath(*(part for part in above if "=" in part), file)  # keeps the columns of a path
        copy.parent.mkdir(parents=True)
        fs.get_file(path, str(copy))
    return str(copy)


def _reading(reader: str, csv: Csv) -> Reading:
    """Returns a function from paths to the call that reads them."""
    if reader == "parquet":
        return lambda paths: f"read_parquet({texts(paths)}, union_by_name = true)"
    # All rows decide on the types: a number in row 3 does not make a text in row 3,000,000 an error.
    options = ["union_by_name = true", "sample_size = -1", f"nullstr = {texts(['', *csv.nulls])}"]
    options += [f"header = {str(not csv.columns).lower()}"]
    if csv.columns:
        options += [f"names = {texts(csv.columns)}"]
    if delimiter := csv.delimiter or ("\t" if reader == "tsv" else None):
        options += [f"delim = {text(delimiter)}"]
    return lambda paths: f"read_csv({texts(paths)}, {', '.join(options)})"


def _common_types(
    database: Database, flag: str, urls: Sequence[str], paths: Sequence[str], read: Reading
) -> dict[str, str]:
    """Returns the type of each column in all files; refuses files that differ in their columns."""
    first: dict[str, str] = {}
    for url, path in zip(urls, paths, strict=True):
        found = database.types(read([path]))
        first = first or found
        if missing := [*first.keys() - found.keys(), *found.keys() - first.keys()]:
            has = url if missing[0] in found else urls[0]
            lacks = urls[0] if missing[0] in found else url
            raise InputError(
                f"{flag}: {without_secrets(lacks)} has no column '{missing[0]}', which {without_secrets(has)} has; "
                "write the same columns to all files"
            )
    if numbers := [one for one in first if NUMBER.fullmatch(one)]:
        raise InputError(
            f"{flag}: the first line of {without_secrets(urls[0])} names a column '{numbers[0]}', so it seems to be a "
            "row; name the columns with --columns"
        )
    if own := [one for one in first if one.lower() in (ROW, "#split")]:
        raise InputError(f"{flag} has a column '{own[0]}', a name that is needed here; rename it")
    return database.types(read(paths)) if len(paths) > 1 else first


def _is_other(dtype: str) -> bool:
    return dtype not in STORED and (kind(dtype) == "other" or dtype.startswith(("STRUCT", "MAP", "UNION")))


def _stored(column: str, dtype: str) -> str:
    return f"{STORED[dtype].format(name(column))} AS {name(column)}" if dtype in STORED else name(column)


def _reason(error: duckdb.Error, paths: Sequence[str], urls: Sequence[str]) -> str:
    """Returns the first lines of an error, with the files as the user knows them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = " ".join(lines[:2])
    for path, url in zip(paths, urls, strict=True):
        reason = reason.replace(path, without_secrets(url))
    return reason
