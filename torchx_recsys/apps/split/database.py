"""The database of a log, and names, texts and types in its queries."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from torchx_recsys.apps.engines.database import Database

MIB_PER_THREAD = 256  # sorting and writing rows with lists need more than counting


def open_database(folder: Path, memory_mib: int, threads: int) -> Database:
    """Opens the database of a log; the arguments are those of `Database`."""
    settings = {"preserve_insertion_order": True}
    database = Database(folder, memory_mib, MIB_PER_THREAD, "the log cannot be split", threads, settings)
    database.run("SET TimeZone = 'UTC'")  # of timestamps with a zone, on every host
    return database


def name(column: str) -> str:
    """Returns a column's name for a query, whatever is in it."""
    return '"' + column.replace('"', '""') + '"'


def names(columns: Iterable[str]) -> str:
    """Returns names of columns for a query."""
    return ", ".join(map(name, columns))


def text(value: str) -> str:
    """Returns a text for a query."""
    return "'" + value.replace("'", "''") + "'"


def texts(values: Sequence[str]) -> str:
    """Returns a list of texts for a query."""
    return f"[{', '.join(map(text, values))}]"


INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
REALS = ("FLOAT", "DOUBLE", "DECIMAL")


def kind(dtype: str) -> str:
    """Returns the kind of a type: integer, number, text, time, truth, duration, list or other."""
    if dtype.endswith("]"):
        return "list"
    plain = dtype.partition("(")[0]
    if plain in INTEGERS:
        return "integer"
    if plain in REALS:
        return "number"
    if plain in ("VARCHAR", "ENUM"):
        return "text"
    if plain.startswith("TIMESTAMP") or plain == "DATE":
        return "time"
    return {"BOOLEAN": "truth", "TIME": "duration"}.get(plain, "other")
