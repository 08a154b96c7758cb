"""Reads a log, or a file of items or users, into a table of DuckDB."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.engines.source import guess_reader
from torchx_recsys.apps.split.database import kind, name, texts
from torchx_recsys.apps.split.text_files import Csv, read_header, reading, wrong_line
from trainer.config.data import DataConfig
from trainer.config.files import CSV_READERS
from trainer.core.errors import InputError, first_line, nearest
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, open_storage
from trainer.data.listing import list_patterns
from trainer.data.readers.formats import NAMES, make_reader

ROW = "#row"
"""The column of a table that numbers its rows in the order of files and lines."""
STORED = {
    "UUID": "CAST({} AS VARCHAR)",
    "HUGEINT": "CAST({} AS DOUBLE)",
    "UHUGEINT": "CAST({} AS DOUBLE)",
    "INTERVAL": "epoch({})",
}
"""What is read in place of a column, for types that Parquet or the trainer lack; durations are seconds."""


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
    if reader == "tsv":
        csv = replace(csv, delimiter="\t")
    shown = [f"{flag}: {without_secrets(url)}" for url in urls]
    columns, delimiter = _columns_of_all(shown, paths, None if reader == "parquet" else csv)
    read = f"read_parquet({texts(paths)}, union_by_name = true)" if not delimiter else reading(paths, delimiter, csv)
    try:
        types = database.types(read)
        left_out = {one: f"of type {dtype}, which is not looked at" for one, dtype in types.items() if _is_other(dtype)}
        chosen = [_stored(one, dtype) for one, dtype in types.items() if one not in left_out]
        numbered = f"SELECT row_number() OVER () AS {name(ROW)}, {', '.join(chosen)} FROM {read}"
        database.run(f"CREATE TABLE {table} AS {numbered}")
    except duckdb.Error as error:
        reason = wrong_line(database, paths, columns, delimiter, csv, error) if delimiter else first_line(error)
        for path, url in zip(paths, urls, strict=True):
            reason = reason.replace(path, without_secrets(url))
        raise InputError(f"{flag} cannot be read: {reason}; repair it") from error
    if not database.value(f"SELECT count(*) FROM {table}"):
        raise InputError(f"{flag} has no rows: {without_secrets(' '.join(source))}; name files with at least one")
    stored = database.types(table)
    del stored[ROW]
    return Table(len(urls), stored, left_out)


def _columns_of_all(shown: Sequence[str], paths: Sequence[str], csv: Csv | None) -> tuple[list[str], str]:
    """Returns the columns of the first file and the delimiter of text; all files must have the same columns.

    Args:
        shown: The files, for messages.
        paths: Their paths on this host.
        csv: How text files are read; None for Parquet.
    """
    first, found = _columns(shown[0], paths[0], csv)
    for where, path in zip(shown[1:], paths[1:], strict=True):
        columns, delimiter = _columns(where, path, csv)
        if missing := [*{*first} - {*columns}, *{*columns} - {*first}]:
            has, lacks = (where, shown[0]) if missing[0] in columns else (shown[0], where)
            raise InputError(
                f"{lacks} has no column '{missing[0]}', which {has.partition(': ')[2]} has; write the same columns to "
                "all files"
            )
        if delimiter != found:
            raise InputError(f"{where} has another delimiter than the first file; write all files alike")
    return first, found


def _columns(shown: str, path: str, csv: Csv | None) -> tuple[list[str], str]:
    """Returns the columns of a file and the delimiter of text, which is empty for Parquet."""
    if csv:
        columns, delimiter = read_header(shown, path, csv)
    else:
        try:
            columns, delimiter = pq.read_schema(path).names, ""
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"{shown} cannot be read: {first_line(error)}; repair it") from error
    lowered = [one.lower() for one in columns]
    if twice := [one for one in columns if lowered.count(one.lower()) > 1]:
        raise InputError(f"{shown} names two columns '{twice[0]}', whatever the case of letters; name each apart")
    if own := [one for one in columns if one.lower() in (ROW, "#split")]:
        raise InputError(f"{shown} has a column '{own[0]}', a name that is needed here; rename it")
    return columns, delimiter


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


def _is_other(dtype: str) -> bool:
    return dtype not in STORED and (kind(dtype) == "other" or dtype.startswith(("STRUCT", "MAP", "UNION")))


def _stored(column: str, dtype: str) -> str:
    return f"{STORED[dtype].format(name(column))} AS {name(column)}" if dtype in STORED else name(column)
