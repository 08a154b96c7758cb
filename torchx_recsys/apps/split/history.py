"""Histories: the last items of a user strictly before each row.

DuckDB sorts the events by user and time, and NumPy makes the lists from this stream. Windows of lists in DuckDB take
several times the processor time for users with many events, and memory beyond its limit.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.conditions import Condition, all_of
from torchx_recsys.apps.split.cuts import Keys
from torchx_recsys.apps.split.database import name, text
from torchx_recsys.apps.split.log import ROW
from torchx_recsys.apps.split.past import Made

ELEMENTS = 1 << 20  # largest number of elements of the lists that are made at once
ROWS = 65_536


def make_history(
    database: Database, keys: Keys, length: int, beside: Sequence[str], conditions: Sequence[Condition], folder: Path
) -> Made:
    """Makes the view `history` of the last items of a user strictly before each row, oldest first.

    Args:
        database: The database, with `log` and `events`.
        keys: Names the columns of users, items and times.
        length: The largest number of items.
        beside: Columns whose values to list beside the items.
        conditions: What an event must meet to be in a history.
        folder: A local directory for the lists.
    """
    row, user, listed = name(ROW), name(str(keys.user)), [str(keys.item), *beside]
    values = "".join(f", {name(column)} AS value_{place}" for place, column in enumerate(listed))
    counts = f"{name(listed[0])} IS NOT NULL AND {all_of(conditions)}"
    sorted_rows = (
        f"SELECT {row} AS row, {user} AS owner, {name(str(keys.time))} AS time, {counts} AS counts{values} "
        f"FROM log JOIN (SELECT {row} FROM events) USING ({row}) ORDER BY owner, time, row"
    )
    names = [f"{column}_history" for column in listed]
    file = folder / "history.parquet"
    batches = database.batches(sorted_rows, min(ROWS, max(1, ELEMENTS // length)))
    _write(_histories(batches, length), [ROW, *names], file)
    database.run(f"CREATE VIEW history AS SELECT * FROM read_parquet({text(str(file))})")
    return Made("history", names)


def _write(tables: Iterable[pa.Table], names: Sequence[str], file: Path) -> None:
    tables = (table.rename_columns(names) for table in tables)
    first = next(tables)
    with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def _histories(batches: Iterable[pa.RecordBatch], length: int) -> Iterator[pa.Table]:
    """Yields the row numbers of batches, with their lists.

    Args:
        batches: Rows in the order of user, time and row, with `row`, `owner`, `time`, `counts` and values.
        length: The largest number of elements.
    """
    kept: pa.Table | None = None  # events that the lists of later rows may need
    for batch in batches:
        new = pa.Table.from_batches([batch])
        table = pa.concat_tables([kept, new]).combine_chunks() if kept else new.combine_chunks()
        earlier = len(table) - len(new)
        is_user, is_moment = _begins(table["owner"]), _begins(table["owner"], table["time"])
        counts = table["counts"].to_numpy(zero_copy_only=False)
        counts = counts & table["owner"].is_valid().to_numpy()
        before = np.cumsum(counts) - counts  # events that count, before each row of the table
        ends = _at_last(before, is_moment)
        starts = np.maximum(ends - length, _at_last(before, is_user))
        lists = _lists(table.filter(pa.array(counts)), starts[earlier:], ends[earlier:])
        yield pa.table([new["row"], *lists], ["row", *table.column_names[4:]])
        # Of the last user: what the next row may list, at the last moment or later.
        last = np.arange(len(table)) >= np.flatnonzero(is_user)[-1]
        kept = table.filter(pa.array(last & counts & (before >= ends[-1] - length)))


def _begins(*columns: pa.ChunkedArray) -> np.ndarray:
    """Returns in which rows a column differs from the row before, `[R]`."""
    differs = np.zeros(columns[0].length(), bool)
    differs[0] = True
    for column in columns:
        codes = column.combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
        differs[1:] |= codes[1:] != codes[:-1]
    return differs


def _at_last(values: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Returns, for each row, the value where its user or moment begins."""
    return values[np.maximum.accumulate(np.where(begins, np.arange(len(values)), 0))]


def _lists(events: pa.Table, starts: np.ndarray, ends: np.ndarray) -> list[pa.Array]:
    """Returns the values of events from `starts` to `ends`, for each row and column of values."""
    lengths = ends - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    chosen = pa.array(np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1]))
    columns = (events[one].combine_chunks() for one in events.column_names[4:])
    return [pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), column.take(chosen)) for column in columns]
