"""Converts Yambda to samples in windows of a day, beside the log that their histories come from.

python -m trainer yambda --out data/yambda
"""

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torchx_recsys.apps.datasets.writer import DataSetWriter, print_summary
from torchx_recsys.apps.datasets.yambda_generated import Generator, Planted
from torchx_recsys.apps.datasets.yambda_samples import EVENTS, Rule, samples, table_of, with_attributes
from torchx_recsys.apps.datasets.yambda_source import DAY, Log, Maps, find_files, open_database, read_log, read_maps
from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.sort_log.sort_log import sort_log
from trainer.core.arrays import mix
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.data.history.log import MANIFEST

GENERATED = "generated"
SIZES_OF_FILES = ("50m", "500m")  # 5b is the default, of a generated log, too
SHARES = 1 << 20  # steps of --other-users
PUBLISHED_HISTORY = {"min_history": 4086, "among": 20_000, "per_kind": 1362}
SMALL_HISTORY = {"min_history": 48, "among": 48, "per_kind": 48}
LEAST = {"min_history": 0, "among": 1, "per_kind": 1, "train_days": 1, "seed": 0}


def yambda(
    out: str = "data/yambda",
    source: str | None = None,
    size: Literal["50m", "500m", "5b", "generated"] = "5b",
    histories: Literal["log", "written"] = "log",
    min_history: int | None = None,
    among: int | None = None,
    per_kind: int | None = None,
    train_days: int = 300,
    other_users: float | None = None,
    users: int = 3000,
    events: int = 106,
    items: int = 16,
    artists: int = 8,
    genres: int = 8,
    days: int = 30,
    zipf: float = 1.0,
    beta: float = 2.1972,
    gamma: float = 0.0,
    drift: float = 0.0,
    spread: float = 0.0,
    seed: int = 0,
    memory_mib: int = 1024,
    threads: int = 0,
) -> dict[str, Any]:
    """Converts Yambda, a log of music streaming, as DLRMv4 trains on it; without the files, generates a log like it.

    Yambda's files are read where they are, and never downloaded: `flat/SIZE/multi_event.parquet`,
    `artist_item_mapping.parquet` and `album_item_mapping.parquet`. Without `--source`, a log of the same shape is
    written to `OUT/source`, a file a day, in which it is known who likes what: a user likes half of the genres of
    artists, and `OUT/summary.json` has the best AUC.

    A sample is a listen after `min_history` events of the user, of any type. `label` is 1 for a listen_plus, of at
    least half of the track. The last day, and half an hour before it, are left out, and so is what comes before
    `train_days`. Windows of 86,400 s count from the first sample's time. `train/000.parquet` and so on are the windows
    in order, for `data.segments`; `validation/` has the last one; `test/` has all samples of the `other_users`, and is
    empty without them.

    * Ids: `uid`, `item_id`, `artist_id`, `album_id` (0: none), `is_organic`.
    * `timestamp` of the sample, and `query_time`, that of the last event before it, in seconds: times of Yambda begin
      at 0, and here on 1973-03-08, whole weeks later.
    * The crosses `user_artist`, `user_album`, `user_hour`, `item_hour`, `artist_hour`, `user_organic` and
      `user_artist_hour`: rows of the published tables, by the published hash. For smaller tables, read them with
      `ids = "modulo"`.

    `log/` is the log that `data.history` gathers histories from, sorted as by `data.sort_log`: `uid`, `timestamp`,
    `item_id`, `artist_id`, `album_id` and `action` (1 listen_plus, 2 like, 4 skip, 0 otherwise). With `--histories
    written`, histories are in the samples instead, as lists: `items_before`, `artists_before`, `albums_before`,
    `actions_before` and `times_before`. Of the last `among` events strictly before the sample, they have the last
    `per_kind` of each kind, oldest first.

    Memory stays near `memory_mib`, and by 8 bytes for each item; sorting needs about twice the size of the log in
    TMPDIR.

    Args:
        out: Directory to write to, on any fsspec URL.
        source: The directory of Yambda's files, on any fsspec URL. Unset: a log is generated.
        size: Which of the published logs.
        histories: log sorts the log for training to gather histories from; written puts them into the samples, for
            small data.
        min_history: Events that a user must have before a sample. Unset: 4,086; of a generated log 48.
        among: Of how many of the last events a history is chosen. Unset: 20,000; of a generated log 48.
        per_kind: Most events of each kind in a history. Unset: 1,362; of a generated log 48.
        train_days: Days to train on.
        other_users: Share of the users that are tested on, and not trained on. Unset: 0; of a generated log 0.2.
        users: Generated users.
        events: Generated listens of a user, in the mean.
        items: Generated items.
        artists: Generated artists.
        genres: Generated genres.
        days: Generated days, without the last.
        zipf: The k-th most frequent item is about k**-zipf as frequent as the first.
        beta: Log-odds of a listen_plus by taste: plus beta where the user likes the genre, else minus beta.
        gamma: The same by item, for one half of the items and the other.
        drift: How often a user's taste for a genre changes in a day.
        spread: Standard deviation of the logarithm of how active users are; 1 is like Yambda.
        seed: Other seeds give other logs, and other users to test on.
        memory_mib: Memory of DuckDB, in MiB.
        threads: Threads of DuckDB. 0: one for each core. No result depends on it.

    Returns:
        The summary, as in `OUT/summary.json`.

    Raises:
        InputError: A file or an argument cannot be used, or no listen is a sample.
    """
    usual = PUBLISHED_HISTORY if source else SMALL_HISTORY
    given = {"min_history": min_history, "among": among, "per_kind": per_kind}
    history = {name: usual[name] if value is None else value for name, value in given.items()}
    other_users = (0.0 if source else 0.2) if other_users is None else other_users
    _check(history | {"train_days": train_days, "seed": seed}, other_users)
    if not source and size in SIZES_OF_FILES:
        raise InputError(
            f"--size is {size}, which is read from Yambda's files; name their directory as --source, or leave it out "
            "to generate a log"
        )
    if source:
        find_files(source, size)  # before anything is written
    settings = {**history, "histories": histories, "train_days": train_days, "other_users": other_users, "seed": seed}
    settings |= {"source": without_secrets(source) if source else GENERATED, "size": size if source else GENERATED}
    rule, planted = Rule(**history, written=histories == "written"), None
    if not source:
        sizes = {"users": users, "events": events, "items": items, "artists": artists, "genres": genres, "days": days}
        planted = Planted(**sizes, zipf=zipf, beta=beta, gamma=gamma, drift=drift, spread=spread, seed=seed)
        planted.check()
        settings |= planted.settings()
    with TemporaryDirectory() as place:
        folder = Path(place)
        database = open_database(folder, memory_mib, threads)
        data_set = DataSetWriter(out, settings)
        if planted:
            source, size = _generate(data_set, planted), GENERATED
        assert source
        about = _write_events(read_log(database, source, size, train_days), read_maps(source), rule, folder)
        parts = _write_windows(database, data_set, rule, folder, other_users, seed)
        database.close()
        if not rule.written:
            log, columns = (str(folder / "events"),), ("item_id", "artist_id", "album_id", "action")
            sorted_log = sort_log(
                log, f"{out}/log", "uid", "timestamp", columns, memory_mib=memory_mib, threads=threads, overwrite=True
            )
            data_set.write_json(f"log/{MANIFEST}", sorted_log | {"source": without_secrets(source)})
    about = {"split_rule": "windows of a day, in the order of time"} | about | (planted.limits() if planted else {})
    summary = data_set.commit(parts, about)
    below = {
        "data.segments.path": "train/{segment}.parquet",
        "data.validation": "validation",
        "data.history.log": "log",
    }
    print_summary(summary, "Yambda", "dlrmv4_small" if planted else "dlrmv4", out, usual="data/yambda", below=below)
    return summary


def _check(numbers: dict[str, int], other_users: float) -> None:
    for name, value in numbers.items():
        if value < LEAST[name]:
            raise InputError(f"--{name.replace('_', '-')} is {value}; it must be {LEAST[name]} or more")
    if not 0 <= other_users < 1:
        raise InputError(f"--other-users is {other_users}; it must be a share from 0 to below 1")


def _generate(data_set: DataSetWriter, planted: Planted) -> str:
    """Writes a generated log, and returns its directory."""
    generator = Generator(planted)
    for name, table in generator.maps().items():
        data_set.beside(f"source/{name}_item_mapping", table)
    for day, table in enumerate(generator.days()):
        data_set.beside(f"source/flat/{GENERATED}/multi_event/{day:03d}", table)
    return f"{data_set.out}/source"


def _write_events(log: Log, maps: Maps, rule: Rule, folder: Path) -> dict[str, int]:
    """Writes the log of events and the samples to local files, in their order; returns what is in the log."""
    number, users = 0, 0
    (folder / "events").mkdir()
    with pq.ParquetWriter(folder / "samples.parquet", rule.schema, compression="lz4") as file:
        for part, events in enumerate(log.users()):
            events = with_attributes(events, maps)
            number, users = number + len(events["uid"]), users + len(np.unique(events["uid"]))
            if not rule.written:
                pq.write_table(table_of(events, EVENTS), folder / f"events/{part:06d}.parquet")
            for rows in samples(events, rule):
                file.write_table(rows)
    return {"events": number, "users": users}


def _write_windows(
    database: Database, data_set: DataSetWriter, rule: Rule, folder: Path, other_users: float, seed: int
) -> list[tuple[str, str]]:
    """Writes the samples window by window, and returns the split and the name of each file.

    Raises:
        InputError: There are samples of fewer than two windows.
    """
    database.run(f"CREATE VIEW samples AS FROM read_parquet('{folder}/samples.parquet', file_row_number = true)")
    _draw_others(database, other_users, seed)
    seen = "FROM samples WHERE uid NOT IN (FROM others)"
    day = f"(timestamp - (SELECT min(timestamp) FROM samples)) // {DAY}"
    last, windows = database.row(f"SELECT max({day}), count(DISTINCT {day}) {seen}")
    if windows < 2:
        raise InputError(
            f"--min-history is {rule.min_history}, after which samples are of {plural(windows, 'window')} of a day, "
            "but it takes one to train and one to validate on; lower it, or take more days"
        )
    of_split = f"CASE WHEN uid IN (FROM others) THEN -1 ELSE {day} END AS day"
    query = f"SELECT {of_split}, * FROM samples ORDER BY day, file_row_number"
    parts = list[tuple[str, str]]()
    for window, tables in _by_window(database.batches(query, rule.rows_at_once)):
        split = "test" if window < 0 else "validation" if window == last else "train"
        parts.append((split, f"{max(window, 0):03d}"))
        with data_set.part(*parts[-1], rule.schema) as rows:
            for table in tables:
                rows.write(table.select(rule.schema.names).cast(rule.schema))
    return parts


def _draw_others(database: Database, share: float, seed: int) -> None:
    """Makes the table `others` of users that are not trained on."""
    uids = database.batches("SELECT DISTINCT uid FROM samples").read_all()["uid"].to_numpy()
    drawn = mix(uids.astype(np.uint64) ^ mix(np.array([seed]))) % np.uint64(SHARES)
    others = pa.table({"uid": uids[drawn < share * SHARES]})
    database.run("CREATE TABLE others AS FROM found", found=others)


def _by_window(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[pa.Table]]]:
    """Yields each window and its rows; rows are in the order of windows."""

    def pieces() -> Iterator[tuple[int, pa.Table]]:
        for batch in batches:
            days = batch["day"].to_numpy()
            for start, stop in pairwise([0, *(np.flatnonzero(np.diff(days)) + 1), len(days)]):
                yield int(days[start]), pa.Table.from_batches([batch.slice(start, stop - start)])

    for window, group in groupby(pieces(), key=itemgetter(0)):
        yield window, map(itemgetter(1), group)
