"""DuckDB on files of its own: bounded memory and threads, and errors of one line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from trainer.core.errors import InputError, first_line

SETTINGS: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


class Database:
    """A database in a directory; what does not fit into memory goes to files there.

    Args:
        folder: A local directory.
        memory_mib: Memory of DuckDB.
        mib_per_thread: Memory that a thread needs.
        cannot: What cannot be done without enough memory or disk, for messages.
        threads: Threads. 0: one for each core, as far as memory suffices.
        settings: More settings of DuckDB.
    """

    def __init__(
        self,
        folder: Path,
        memory_mib: int,
        mib_per_thread: int,
        cannot: str,
        threads: int = 0,
        settings: Mapping[str, Any] = {},
    ) -> None:
        self._memory_mib, self._cannot = memory_mib, cannot
        config = {**SETTINGS, **settings, "temp_directory": str(folder)}
        self._connection = duckdb.connect(folder / "data.duckdb", config=config)
        cores = threads or self.value("SELECT current_setting('threads')")
        self.run(f"SET threads = {max(1, min(cores, memory_mib // mib_per_thread))}")
        self.run(f"SET memory_limit = '{memory_mib}MiB'")

    def run(self, query: str, **tables: pa.Table | pa.RecordBatchReader) -> Any:
        """Executes a query, which may read Arrow's tables by their names.

        Raises:
            InputError: There is too little memory or disk.
        """
        for name, table in tables.items():
            self._connection.register(name, table)
        try:
            return self._connection.execute(query)
        except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
            raise InputError(
                f"--memory-mib is {self._memory_mib}, with which {self._cannot}: {first_line(error)}; raise it, or "
                "name a directory with more space in TMPDIR"
            ) from error
        finally:
            for name in tables:
                self._connection.unregister(name)

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

    def batches(self, query: str, rows: int = 1_000_000) -> pa.RecordBatchReader:
        """Streams the rows of a query, so many at once."""
        # sql() streams them; execute() would copy all of them.
        return self._connection.sql(query).to_arrow_reader(rows)

    def types(self, relation: str) -> dict[str, str]:
        """Returns the type of each column of a table, a view or a function."""
        return {name: dtype for name, dtype, *_ in self.rows(f"DESCRIBE SELECT * FROM {relation}")}

    def close(self) -> None:
        """Closes the files."""
        self._connection.close()
