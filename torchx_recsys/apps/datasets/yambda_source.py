"""Reads Yambda's published files into DuckDB, and yields their events user after user."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torchx_recsys.apps.engines.database import Database
from trainer.core.errors import InputError, first_line, some_of
from trainer.core.secrets import without_secrets
from trainer.core.storage import Storage, named, open_storage
from trainer.rules.derived_ids import SECONDS

COLUMNS = ("uid", "timestamp", "item_id", "is_organic", "event_type", "played_ratio_pct")
EVENT_TYPES = ("listen", "like", "dislike", "unlike", "undislike")
LISTEN_PLUS, LIKE, SKIP = 1, 2, 4
"""The bits of an event's action. Dislikes, and likes and dislikes taken back, have none."""
PLAYED = 50  # least percentage of a track that counts as a listen_plus
MAPS = ("artist", "album")  # of items
DAY, GAP, WEEK = 86_400, 1_800, 604_800
ROWS = 1 << 20  # rows that are read at once
MIB_PER_THREAD = 256


@dataclass(frozen=True)
class Maps:
    """The artist and the album of each item, by the item's id; 0 where there is none."""

    artist: np.ndarray
    album: np.ndarray

    def of(self, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the artists and albums of items, `[N]` each."""
        return _of(self.artist, items), _of(self.album, items)


def _of(ids: np.ndarray, items: np.ndarray) -> np.ndarray:
    return np.where(items < len(ids), ids[np.minimum(items, len(ids) - 1)], 0)


@dataclass(frozen=True)
class Log:
    """The events in DuckDB.

    Attributes:
        database: The database, with the table `log`.
        start: The first time of the range to train on.
        stop: The end of the range; a test day, and a gap before it, are left out.
        shift: Seconds that are added to times, whole weeks.
    """

    database: Database
    start: int
    stop: int
    shift: int

    def users(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the events of whole users by column, in the order of user, time and row of the files."""
        query = (
            f"SELECT uid, timestamp, item_id, is_organic, action FROM log WHERE timestamp >= {self.start} AND "
            f"timestamp < {self.stop} ORDER BY uid, timestamp, row"
        )
        waiting: pa.Table | None = None
        for batch in self.database.batches(query, ROWS):
            table = pa.Table.from_batches([batch])
            table = pa.concat_tables([waiting, table]) if waiting else table
            uid = table["uid"].to_numpy()
            begin = int(np.searchsorted(uid, uid[-1]))  # of the last user, whose events may go on
            if begin:
                yield self._columns(table.slice(0, begin))
            waiting = table.slice(begin)
        if waiting:
            yield self._columns(waiting)

    def _columns(self, table: pa.Table) -> dict[str, np.ndarray]:
        columns = {name: table[name].to_numpy() for name in table.column_names}
        return columns | {"timestamp": columns["timestamp"] + self.shift}


def find_files(source: str, size: str) -> tuple[Storage, list[str]]:
    """Finds the files of a log, published as one and generated as one for each day, and checks that the maps are there.

    Raises:
        InputError: A file is missing.
    """
    fs, root = _opened(source)
    path = f"{root}/flat/{size}/multi_event"
    with named("--source", source):
        files = [f"{path}.parquet"] if fs.isfile(f"{path}.parquet") else sorted(fs.glob(f"{path}/*.parquet"))
        lacking = [one for one in MAPS if not fs.isfile(f"{root}/{one}_item_mapping.parquet")]
    if not files:
        raise InputError(
            f"--source is '{without_secrets(source)}', which has no flat/{size}/multi_event.parquet; download it, or "
            "name the size that is there as --size"
        )
    if lacking:
        raise InputError(
            f"--source is '{without_secrets(source)}', which has no {lacking[0]}_item_mapping.parquet; download it, too"
        )
    return fs, files


def read_maps(source: str) -> Maps:
    """Reads which artist and which album each item is of. Of several rows of an item, the last one counts.

    Raises:
        InputError: A file cannot be read.
    """
    return Maps(*(_read_map(source, name) for name in MAPS))


def _read_map(source: str, name: str) -> np.ndarray:
    fs, root = _opened(source)
    table = pa.Table.from_batches(_batches(fs, f"{root}/{name}_item_mapping.parquet", ("item_id", f"{name}_id")))
    items, ids = (table[column].to_numpy().astype(np.int64) for column in table.column_names)
    found = np.zeros(items.max(initial=0) + 1, np.int32)
    # NumPy leaves open which of equal places is kept, so each item is written once.
    last = len(items) - 1 - np.unique(items[::-1], return_index=True)[1]
    found[items[last]] = ids[last]
    return found


def read_log(database: Database, source: str, size: str, train_days: int) -> Log:
    """Reads the events into the table `log`.

    Args:
        database: The database.
        source: The directory of the published files.
        size: 50m, 500m, 5b, or generated.
        train_days: Days to train on, before the gap before the last day.

    Raises:
        InputError: A file is missing or cannot be read, or has other columns or events.
    """
    fs, files = find_files(source, size)
    types = "uid BIGINT, timestamp BIGINT, item_id BIGINT, is_organic TINYINT, action TINYINT, row BIGINT"
    database.run(f"CREATE TABLE log ({types})")
    rows = 0
    for file in files:
        for batch in _batches(fs, file, COLUMNS):
            database.run("INSERT INTO log SELECT * FROM batch", batch=_prepared(batch, file, rows))
            rows += len(batch)
    if not rows:
        raise InputError(f"--source is '{without_secrets(source)}', whose multi_event.parquet has no rows")
    last = database.value("SELECT max(timestamp) FROM log")
    stop = last - DAY - GAP
    # Published times begin at 0, and times in seconds are of 1973 or later. Whole weeks keep hours and weekdays.
    shift = 0 if last >= SECONDS.start else -(-SECONDS.start // WEEK) * WEEK
    return Log(database, stop - train_days * DAY, stop, shift)


def _prepared(batch: pa.RecordBatch, file: str, before: int) -> pa.Table:
    """Returns the columns that are needed of events: the action in place of event and ratio, and the row."""
    for name in COLUMNS[:-1]:
        if batch[name].null_count:
            raise InputError(f"--source: {file} has null in column '{name}'; only played_ratio_pct may be null")
    coded = batch["event_type"].cast(pa.string()).dictionary_encode()
    if unknown := [name for name in coded.dictionary.to_pylist() if name not in EVENT_TYPES]:
        raise InputError(f"--source: {file} has the event_type '{unknown[0]}'; known are {', '.join(EVENT_TYPES)}")
    event = np.array([EVENT_TYPES.index(name) for name in coded.dictionary.to_pylist()])[coded.indices.to_numpy()]
    ratio = batch["played_ratio_pct"].cast(pa.float32()).fill_null(0).to_numpy(zero_copy_only=False)
    listened = np.where(ratio >= PLAYED, LISTEN_PLUS, SKIP)
    action = np.select([event == 0, event == 1], [listened, LIKE], 0).astype(np.int8)
    rows = np.arange(before, before + len(batch))
    return pa.table([*(batch[name] for name in COLUMNS[:4]), action, rows], [*COLUMNS[:4], "action", "row"])


def _batches(fs: Storage, path: str, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yields columns of a Parquet file.

    Raises:
        InputError: It lacks a column, or is no Parquet file.
    """
    with fs.open(path) as file:
        try:
            parquet = pq.ParquetFile(file)
            there = parquet.schema_arrow.names
            if missing := [name for name in names if name not in there]:
                raise InputError(f"--source: {path} has no column '{missing[0]}'; it has {some_of(there)}")
            yield from (batch.select([*names]) for batch in parquet.iter_batches(ROWS, columns=[*names]))
        except pa.ArrowException as error:
            raise InputError(f"--source: {path} cannot be read: {first_line(error)}; download it again") from error


def _opened(source: str) -> tuple[Storage, str]:
    with named("--source", source):
        fs, root = open_storage(source.rstrip("/"))
        there = fs.exists(root)
    if not there:
        raise InputError(f"--source is '{without_secrets(source)}', which is not there; name Yambda's directory")
    return fs, root


def open_database(folder: Path, memory_mib: int, threads: int) -> Database:
    """Opens the database of a log; the arguments are those of `Database`.

    Raises:
        InputError: There is too little memory for one thread.
    """
    if memory_mib < MIB_PER_THREAD:
        raise InputError(f"--memory-mib is {memory_mib}; it must be at least {MIB_PER_THREAD}")
    database = Database(folder, memory_mib, MIB_PER_THREAD, "the log cannot be sorted", threads)
    database.run("SET enable_progress_bar = false")
    return database
