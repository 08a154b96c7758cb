"""DuckDB on files of its own: bounded memory and threads, and errors of one line."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from trainer.core.errors import InputError, first_line

MIB_PER_THREAD = 256  # sorting and writing rows with lists need more than counting
SETTINGS: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "preserve_insertion_order": True,
}


class Database:
    """A database in a directory; what does not fit into memory goes to files there.

    Args:
        folder: A local directory.
        memory_mib: Memory of DuckDB.
        threads: Threads. 0: one for each core, as far as memory suffices.
    """

    def __init__(self, folder: Path, memory_mib: int, threads: int = 0) -> None:
        self._memory_mib = memory_mib
        self._connection = duckdb.connect(folder / "log.duckdb", config=SETTINGS | {"temp_directory": str(folder)})
        cores = threads or self.value("SELECT current_setting('threads')")
        self.run("SET TimeZone = 'UTC'")  # of timestamps with a zone, on every host
        self.run(
            f"SET threads = {max(1, min(cores, memory_mib // MIB_PER_THREAD))}; SET memory_limit = '{memory_mib}MiB'"
        )

    def run(self, query: str) -> Any:
        """Executes a query.

        Raises:
            InputError: There is too little memory or disk.
        """
        try:
            return self._connection.execute(query)
        except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
            raise InputError(
                f"--memory-mib is {self._memory_mib}, with which the log cannot be split: {first_line(error)}; raise "
                "it, or name a directory with more space in TMPDIR"
            ) from error

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Returns the rows of a query."""
        return self.run(query).fetchall()

    def row(self, query: str) -> tuple[Any, ...]:
        """Returns the only row of a query."""
        (row,) = self.rows(query)
        return row

    def value(self, query: str) -> Any:
        """Returns the only value of a query."""
        (value,) = self.row(query)
        return value

    def batches(self, query: str, rows: int) -> pa.RecordBatchReader:
        """Streams the rows of a query, so many at once."""
        # sql() streams them; execute() would copy all of them.
        return self._connection.sql(query).to_arrow_reader(rows)

    def types(self, relation: str) -> dict[str, str]:
        """Returns the type of each column of a table, a view or a function."""
        return {name: dtype for name, dtype, *_ in self.rows(f"DESCRIBE SELECT * FROM {relation}")}

    def close(self) -> None:
        """Closes the files."""
        self._connection.close()


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
