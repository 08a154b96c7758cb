"""Converts Taobao's log of displayed ads to Parquet: which ads users clicked, and what they bought after a click.

python -m trainer taobao --source taobao --out data/taobao
"""

import posixpath
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from tqdm import tqdm

from torchx_recsys.apps.datasets.writer import DataSetWriter, print_summary
from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.engines.progress import progress_bar
from trainer.core.errors import InputError, first_line, some_of
from trainer.core.secrets import without_secrets
from trainer.core.storage import Storage, named, open_storage

INTEGER, TEXT, REAL = pa.int64(), pa.string(), pa.float32()
FILES = {
    "raw_sample": {"user": INTEGER, "time_stamp": INTEGER, "adgroup_id": INTEGER, "pid": TEXT, "clk": INTEGER},
    "ad_feature": {
        **dict.fromkeys(("adgroup_id", "cate_id", "campaign_id", "customer", "brand"), INTEGER),
        "price": REAL,
    },
    "user_profile": {
        **dict.fromkeys(("userid", "cms_segid", "cms_group_id", "final_gender_code", "age_level"), INTEGER),
        **dict.fromkeys(("pvalue_level", "shopping_level", "occupation", "new_user_class_level"), INTEGER),
    },
    "behavior_log": {"user": INTEGER, "time_stamp": INTEGER, "btag": TEXT, "cate": INTEGER, "brand": INTEGER},
}
"""The files of the data set, and the types of their columns."""
NEEDED = {"raw_sample": ("user", "time_stamp", "adgroup_id", "clk"), "behavior_log": ("user", "time_stamp", "btag")}
ACTIONS = ("pv", "cart", "fav", "buy")
HOUR, DAY = 3_600, 86_400
CHINA = 8 * HOUR  # ahead of UTC; days and hours are of China
BLOCK_BYTES = 1 << 24
MIB_PER_THREAD = 256
EVENTS_AT_ONCE = 4_000_000  # of whole users; lists of a user are made in memory


def taobao(
    source: str,
    out: str = "data/taobao",
    history: int = 50,
    buy_hours: int = 24,
    memory_mib: int = 4096,
    threads: int = 0,
) -> dict[str, Any]:
    """Converts Taobao's log of displayed ads (Ali_Display_Ad_Click): 26 million ads shown to a million users in 8 days.

    SOURCE has `raw_sample.csv`, `ad_feature.csv`, `user_profile.csv` and `behavior_log.csv`, unpacked, on any fsspec
    URL. They are read where they are, and never downloaded. DuckDB sorts them in files of its own, in `TMPDIR`, which
    needs about twice the space of the sources.

    A row is an ad that was shown. `clk` is 1 where it was clicked. `buy` is 1 where it was clicked and the user bought
    something of its category and brand within `buy_hours`; the log ends with the last day, whose later rows have less
    time to buy. Each day, in China, is a file. The last day tests, the one before validates, all others train.

    * The ad: `adgroup_id`, `cate_id`, `campaign_id`, `customer`, `brand` (null: none), `price`.
    * The user: `user_id`, `cms_segid`, `cms_group_id`, `final_gender_code`, `age_level`, `pvalue_level`,
      `shopping_level`, `occupation`, `new_user_class_level`; null where unknown.
    * The moment: `timestamp` in seconds, `hour` and `weekday` (0 is Monday) in China, `pid`, the place on the page.
    * The past, from seconds before the row's alone: `tag_category_list`, `tag_brand_list` (0: none),
      `tag_action_list` (0 looked at, 1 put into the cart, 2 liked, 3 bought) and `tag_time_list` of the user's last
      `history` actions, oldest first.

    `items.parquet` is the catalogue: a row for each ad, with its columns and `train_rows`, its rows in train.

    Args:
        source: The directory of the files.
        out: Directory to write to, on any fsspec URL.
        history: Most actions of a user in the lists.
        buy_hours: Hours after a click in which a purchase counts.
        memory_mib: Memory of DuckDB in MiB; what does not fit goes to files in the temporary directory.
        threads: Threads. 0: one for each core, as far as memory suffices.

    Returns:
        The summary, as in `OUT/summary.json`.

    Raises:
        InputError: A file is missing or cannot be read, or lacks a column.
    """
    for flag, value, least in (
        ("--history", history, 1),
        ("--buy-hours", buy_hours, 1),
        ("--memory-mib", memory_mib, MIB_PER_THREAD),
    ):
        if value < least:
            raise InputError(f"{flag} is {value}; it must be at least {least}")
    fs, paths = _find_files(source)
    settings = {"source": without_secrets(source), "history": history, "buy_hours": buy_hours}
    data_set = DataSetWriter(out, settings, beside=["items"], label="clk")
    with TemporaryDirectory() as folder:
        database = Database(Path(folder), memory_mib, MIB_PER_THREAD, "the log cannot be sorted", threads)
        try:
            database.run("SET enable_progress_bar = false")
            _read(database, fs, paths)
            _join(database, history, buy_hours)
            parts = _write(database, data_set)
        finally:
            database.close()
    about = {"split_rule": "by day: the last tests, the one before validates, all others train"}
    summary = data_set.commit(parts, about)
    print_summary(summary, "Taobao's ads", "taobao", out)
    return summary


def _find_files(source: str) -> tuple[Storage, dict[str, str]]:
    """Returns the paths of the four files."""
    with named("--source", source):
        fs, root = open_storage(source.rstrip("/"))
        paths = {name: posixpath.join(root, f"{name}.csv") for name in FILES}
        lacking = [f"{name}.csv" for name, path in paths.items() if not fs.isfile(path)]
    if lacking:
        raise InputError(
            f"--source is '{without_secrets(source)}', which has no {lacking[0]}; name the directory of the unpacked "
            f"files {', '.join(f'{name}.csv' for name in FILES)}"
        )
    return fs, paths


def _read(database: Database, fs: Storage, paths: dict[str, str]) -> None:
    """Reads the files into tables of their names, each row with its number in the file."""
    with progress_bar(sum(fs.size(path) for path in paths.values()), "B") as bar:
        for name, path in paths.items():
            rows = 0
            for batch in _batches(fs, path, name, bar):
                places = np.arange(rows, rows + len(batch))
                table = pa.table([*batch.columns, places], [*FILES[name], "place"])
                verb = f"INSERT INTO {name}" if rows else f"CREATE TABLE {name} AS"
                database.run(f"{verb} SELECT * FROM batch", batch=table)
                rows += len(batch)


def _batches(fs: Storage, path: str, name: str, bar: tqdm) -> Iterator[pa.RecordBatch]:
    """Yields the columns of a file.

    Raises:
        InputError: The file lacks a column, has a value of another type, or a null where there must be none.
    """
    with fs.open(path) as file:
        # The published header ends one of its names with a space.
        header = [column.strip() for column in file.readline().decode(errors="replace").split(",")]
        if missing := [column for column in FILES[name] if column not in header]:
            raise InputError(f"--source: {path} has no column '{missing[0]}'; it has {some_of(header)}")
        options = pa_csv.ConvertOptions(
            include_columns=[*FILES[name]],
            column_types=FILES[name],
            null_values=["", "NULL"],
            strings_can_be_null=True,
        )
        read, done = pa_csv.ReadOptions(column_names=header, block_size=BLOCK_BYTES), 0
        try:
            for batch in pa_csv.open_csv(file, read, convert_options=options):
                bar.update(file.tell() - done)
                done = file.tell()
                for column in NEEDED.get(name, ()):
                    if batch[column].null_count:
                        raise InputError(f"--source: {path} has rows without '{column}'; download it again")
                yield batch
        except pa.ArrowException as error:
            raise InputError(f"--source: {path} cannot be read: {first_line(error)}; download it again") from error


def _join(database: Database, history: int, buy_hours: int) -> None:
    """Makes the table `rows`: every sample with its ad, its user, and what the user did before and after."""
    unknown = database.rows(f"SELECT DISTINCT btag FROM behavior_log WHERE btag NOT IN {ACTIONS}")
    if unknown:
        raise InputError(f"--source: behavior_log.csv has the btag '{unknown[0][0]}'; known are {', '.join(ACTIONS)}")
    # Of several rows of an ad or of a user, the last one counts.
    for table, key, name in (("ad_feature", "adgroup_id", "ads"), ("user_profile", "userid", "users")):
        last = f"PARTITION BY {key} ORDER BY place DESC"
        database.run(f"CREATE TABLE {name} AS SELECT * FROM {table} QUALIFY row_number() OVER ({last}) = 1")
    codes = f"list_position({[*ACTIONS]}, btag) - 1"
    database.run(
        f"CREATE TABLE log AS SELECT user, time_stamp, {codes} AS action, coalesce(cate, 0) AS cate, "
        "coalesce(brand, 0) AS brand, place FROM behavior_log ORDER BY user, time_stamp, place"
    )
    database.run("DROP TABLE behavior_log")
    database.run(
        f"""CREATE TABLE bought AS SELECT DISTINCT s.place FROM raw_sample s
        JOIN ads a USING (adgroup_id)
        JOIN log b ON b.user = s.user AND b.cate = a.cate_id AND b.brand = a.brand AND b.action = {ACTIONS.index("buy")}
        AND b.time_stamp > s.time_stamp AND b.time_stamp <= s.time_stamp + {buy_hours * HOUR}
        WHERE s.clk = 1"""
    )
    verb = "CREATE TABLE rows AS"
    with progress_bar(database.value("SELECT count(*) FROM raw_sample"), "rows") as bar:
        for first, last in _ranges(database):
            bar.update(database.value(f"{verb} {_joined(f'BETWEEN {first} AND {last}', history)}"))
            verb = "INSERT INTO rows"


def _ranges(database: Database) -> Iterator[tuple[int, int]]:
    """Yields ranges of users, first and last, that have at most EVENTS_AT_ONCE events, or a single user."""
    users = database.rows(
        "SELECT user, count(log.user) FROM (SELECT DISTINCT user FROM raw_sample) LEFT JOIN log USING (user) "
        "GROUP BY user ORDER BY user"
    )
    first, events = users[0][0], 0
    last = first
    for user, count in users:
        if events and events + count > EVENTS_AT_ONCE:
            yield first, last
            first, events = user, 0
        last, events = user, events + count
    yield first, last


def _joined(users: str, history: int) -> str:
    """Returns the query for the rows of a range of users."""
    lists = {"cate": "tag_category_list", "brand": "tag_brand_list", "action": "tag_action_list"}
    lists |= {"time_stamp": "tag_time_list"}
    order = "ORDER BY time_stamp, place"
    grouped = ", ".join(f"list({column} {order}) AS {name}" for column, name in lists.items())
    cut = ", ".join(
        f"coalesce(list_slice({name}, greatest(before - {history - 1}, 1), before), []) AS {name}"
        for name in lists.values()
    )
    ad = ", ".join(name for name in FILES["ad_feature"] if name != "adgroup_id")
    profile = ", ".join(name for name in FILES["user_profile"] if name != "userid")
    return f"""
        WITH past AS (SELECT user, {grouped} FROM log WHERE user {users} GROUP BY user),
        samples AS (
            SELECT s.*, {", ".join(lists.values())},
                len(list_filter(tag_time_list, lambda t: t < s.time_stamp)) AS before
            FROM raw_sample s LEFT JOIN past USING (user) WHERE s.user {users}
        )
        SELECT (s.time_stamp + {CHINA}) // {DAY} AS day, s.place, s.clk::FLOAT AS clk,
            (s.place IN (SELECT place FROM bought))::FLOAT AS buy, s.user AS user_id, adgroup_id, {ad}, {profile},
            s.time_stamp AS timestamp, (s.time_stamp + {CHINA}) % {DAY} // {HOUR} AS hour,
            ((s.time_stamp + {CHINA}) // {DAY} + 3) % 7 AS weekday, pid, {cut}
        FROM samples s LEFT JOIN ads USING (adgroup_id) LEFT JOIN users ON users.userid = s.user"""


def _write(database: Database, data_set: DataSetWriter) -> list[tuple[str, str]]:
    """Writes a file for each day, and the catalogue; returns the files."""
    days = [day for (day,) in database.rows("SELECT DISTINCT day FROM rows ORDER BY day")]
    if len(days) < 3:
        raise InputError(f"--source: raw_sample.csv has {len(days)} days; it needs three, to train, validate and test")
    parts = []
    for at, day in enumerate(days):
        split = {len(days) - 1: "test", len(days) - 2: "validation"}.get(at, "train")
        batches = database.batches(
            f"SELECT * EXCLUDE (day, place) FROM rows WHERE day = {day} ORDER BY timestamp, place", 1 << 16
        )
        name = f"{datetime.fromtimestamp(0, UTC) + timedelta(days=day):%Y%m%d}"
        with data_set.part(split, name, batches.schema) as rows:
            for batch in batches:
                rows.write(pa.Table.from_batches([batch]))
        parts.append((split, name))
    catalogue = database.batches(
        f"""SELECT ads.* EXCLUDE (place), coalesce(train_rows, 0) AS train_rows FROM ads LEFT JOIN
        (SELECT adgroup_id, count(*) AS train_rows FROM rows WHERE day < {days[-2]} GROUP BY adgroup_id)
        USING (adgroup_id) ORDER BY adgroup_id"""
    )
    data_set.beside("items", catalogue.read_all())
    return parts
