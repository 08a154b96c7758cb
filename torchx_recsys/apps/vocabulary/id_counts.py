"""Counts ids out of core, by DuckDB.

For 20 million rows with numbers, strings and lists, DuckDB takes a fifth of the processor time of Arrow's `group_by`
with files of our own (docs/guides/vocabulary.md). Ibis on DuckDB takes as long, and needs seventeen more packages. The
rows come from `RowGroupReader`, so that readers, filters and types work as in training.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa

from torchx_recsys.apps.engines.database import Database
from trainer.rules.plain_types import is_string

MIB_PER_THREAD = 64  # with less memory, DuckDB cannot even count in files
COUNT = "SELECT id, count(*) AS count FROM {ids} WHERE id IS NOT NULL GROUP BY id"
# The ids of an earlier vocabulary keep their rows, whatever their counts.
KEEP = """
    SELECT id, coalesce(count, 0) AS count FROM {counts} FULL JOIN {earlier} USING (id)
    WHERE place IS NOT NULL OR count >= {min_count} ORDER BY place NULLS LAST, count DESC, id LIMIT {limit}
"""
SUMS = "SELECT count(*), CAST(coalesce(sum(count), 0) AS BIGINT) FROM {table}"
IS_TEXT = "SELECT bool_and(try(decode(id)) IS NOT NULL) FROM {kept}"


class IdCounts:
    """Counts the ids of several vocabularies, one after the other: in memory up to a limit, then in files.

    Args:
        read: Yields the ids of columns.
        folder: A local directory for the files.
        memory_mib: Memory for the counts.
    """

    def __init__(self, read: Callable[[Sequence[str]], Iterable[pa.Array]], folder: Path, memory_mib: int) -> None:
        settings = {"arrow_large_buffer_size": True}
        self._read = read
        self._database = Database(folder, memory_mib, MIB_PER_THREAD, "the ids cannot be counted", settings=settings)

    def count(self, name: str, columns: Sequence[str], dtype: pa.DataType) -> None:
        """Counts the ids of columns for a vocabulary; nulls do not count.

        Args:
            name: Name of the vocabulary.
            columns: Columns of integers or strings.
            dtype: Their type as `plain_ids`.
        """
        failures: list[BaseException] = []
        schema = pa.schema([("id", dtype)])
        batches = pa.RecordBatchReader.from_batches(schema, _batches(self._read(columns), schema, failures))
        try:
            self._database.run(f"CREATE TABLE {_table('counts', name)} AS {COUNT.format(ids='ids')}", ids=batches)
        except duckdb.Error:
            if failures:  # DuckDB passes on only the text of an error
                raise failures[0] from None
            raise

    def keep(self, name: str, min_count: int, limit: int | None, earlier: pa.Array) -> dict[str, int]:
        """Chooses the ids that get a row: the earlier ones in their order, then the most frequent ones.

        Args:
            name: Name of the vocabulary.
            min_count: Occurrences that an id needs.
            limit: Most ids to keep. Unset: no limit.
            earlier: Ids to keep in any case, of the type of the counted ones.

        Returns:
            The numbers of `distinct` ids and of their `occurrences`, of `kept` ids, and of the occurrences
            `covered` by these.
        """
        counts, kept = _table("counts", name), _table("kept", name)
        known = pa.table({"id": earlier, "place": pa.array(range(len(earlier)), pa.int64())})
        most = "ALL" if limit is None else limit
        keep = KEEP.format(counts=counts, earlier="earlier", min_count=min_count, limit=most)
        self._database.run(f"CREATE TABLE {kept} AS {keep}", earlier=known)
        (distinct, occurrences), (many, covered) = (
            self._database.row(SUMS.format(table=one)) for one in (counts, kept)
        )
        return {"distinct": distinct, "kept": many, "occurrences": occurrences, "covered": covered}

    def kept(self, name: str) -> pa.RecordBatchReader:
        """Reads the ids that get a row, and their counts, in the order of the rows; as strings if all are text."""
        table = _table("kept", name)
        of_bytes = self._database.rows(f"SELECT typeof(id) FROM {table} LIMIT 1") == [("BLOB",)]
        id = "decode(id) AS id" if of_bytes and self._database.rows(IS_TEXT.format(kept=table)) == [(True,)] else "id"
        return self._database.batches(f"SELECT {id}, count FROM {table}")


def plain_ids(ids: pa.Array) -> pa.Array:
    """Returns integers as int64, where large unsigned integers wrap, and strings as bytes, which need not be text."""
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    return ids.cast(pa.large_binary()) if is_string(ids.type) else ids.cast(pa.int64(), safe=False)


def _table(kind: str, name: str) -> str:
    return f"{kind}_{name.encode().hex()}"  # to DuckDB, `Class` and `class` are one name


def _batches(ids: Iterable[pa.Array], schema: pa.Schema, failures: list[BaseException]) -> Iterator[pa.RecordBatch]:
    try:
        for array in ids:
            if len(present := plain_ids(array).drop_null()):  # a file without values does not determine the type
                yield pa.RecordBatch.from_arrays([present], schema=schema)
    except BaseException as error:
        failures.append(error)
        raise
