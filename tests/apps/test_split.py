"""`data.split` against plain Python: the ways to cut, labels, the catalogue, and what it refuses."""

import collections
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from torchx_recsys.apps.split.split import split
from trainer.__main__ import main as trainer
from trainer.core.console import plural
from trainer.core.errors import InputError

SPLITS = ("train", "validation", "test")


def log_of(rows=400, users=12, items=30, moments=60, seed=0):
    """Events with many of the same moment; `event` numbers them in the order of the log."""
    chance = random.Random(seed)
    return pa.table(
        {
            "event": [*range(rows)],
            "user": [chance.randrange(users) for _ in range(rows)],
            "item": [chance.randrange(items) for _ in range(rows)],
            "rating": [chance.randrange(1, 6) for _ in range(rows)],
            "when": [chance.randrange(moments) * 10 for _ in range(rows)],
        }
    )


def cut(table, tmp_path, out="out", **arguments):
    """Splits a table; returns the summary, and the rows of each split."""
    source = tmp_path / "log.parquet"
    pq.write_table(table, source)
    summary = split((str(source),), str(tmp_path / out), **arguments)
    return summary, rows_in(tmp_path / out)


def rows_in(out):
    return {name: pq.read_table(out / name).to_pylist() for name in SPLITS if (out / name).exists()}


def events(rows):
    return {name: [row["event"] for row in found] for name, found in rows.items()}


def test_by_time_cuts_at_the_moments_nearest_to_the_shares(tmp_path):
    table = log_of()
    summary, rows = cut(table, tmp_path, time="when", validation="0.2", test="0.15")
    moments = sorted(table["when"].to_pylist())
    before = {one: sum(other < one for other in moments) for one in moments[1:] if one > moments[0]}
    first_test = min(before, key=lambda one: (abs(before[one] - 0.85 * 400), one))
    first_validation = min(before, key=lambda one: (abs(before[one] - 0.65 * 400), one))
    for row in table.to_pylist():
        expected = "test" if row["when"] >= first_test else "validation" if row["when"] >= first_validation else "train"
        assert row in rows[expected]
    for found in rows.values():
        assert found == sorted(found, key=lambda row: (row["when"], row["event"]))
    assert summary["splits"]["test"]["rows"] == len(rows["test"])
    assert (summary["splits"]["test"]["from"], summary["splits"]["train"]["to"]) == (
        first_test,
        max(row["when"] for row in rows["train"]),
    )
    assert json.loads((tmp_path / "out/summary.json").read_text()) == summary


def test_by_time_at_given_moments(tmp_path):
    start = datetime.datetime(2026, 1, 1)
    table = pa.table({"event": [*range(50)], "at": [start + datetime.timedelta(hours=hour) for hour in range(50)]})
    _, rows = cut(table, tmp_path, time="at", validation="2026-01-02", test="2026-01-02 12:00:00")
    assert events(rows) == {"train": [*range(24)], "validation": [*range(24, 36)], "test": [*range(36, 50)]}
    numbers = pa.table({"event": [*range(9)], "at": [0.5 * number for number in range(9)]})
    _, rows = cut(numbers, tmp_path, "numbers", time="at", validation="0", test="3")
    assert events(rows) == {"train": [*range(6)], "test": [6, 7, 8]}


@pytest.mark.parametrize("by", ["user", "share"])
def test_the_same_rows_whatever_the_files_and_threads(tmp_path, by):
    table = log_of(rows=3000, users=300)
    _, rows = cut(table, tmp_path, "one", by=by, user="user", seed=3, threads=1)
    files = tmp_path / "files"
    files.mkdir()
    for part in range(5):
        shown = ["rating", "user", "when", "event", "item"] if part % 2 else table.column_names
        pq.write_table(table.slice(part * 600, 600).select(shown), files / f"{9 - part}.parquet", row_group_size=100)
    split((str(files),), str(tmp_path / "many"), by=by, user="user", seed=3, threads=3)
    again = rows_in(tmp_path / "many")
    assert {name: sorted(found) for name, found in events(again).items()} == events(rows)
    assert 0.06 < len(rows["test"]) / 3000 < 0.14
    assert 0.06 < len(rows["validation"]) / 3000 < 0.14
    _, others = cut(table, tmp_path, "other", by=by, user="user", seed=4)
    assert events(others) != events(rows)


def test_by_user_has_each_user_in_one_split(tmp_path):
    summary, rows = cut(log_of(rows=2000, users=100), tmp_path, by="user", user="user", time="when")
    users = {name: {row["user"] for row in found} for name, found in rows.items()}
    assert sum(map(len, users.values())) == len(set.union(*users.values()))
    assert summary["splits"]["test"]["new users"] == len(users["test"])
    first = min(row["when"] for row in rows["test"])
    later = sum(row["when"] >= first for row in rows["train"])
    assert any(line.startswith(f"train has {later:,} rows not earlier") for line in summary["told"])


def test_by_share_has_equal_rows_in_one_split(tmp_path):
    _, rows = cut(pa.table({"one": [n % 40 for n in range(800)], "two": ["x"] * 800}), tmp_path)
    values = [{row["one"] for row in found} for found in rows.values()]
    assert sum(map(len, values)) == 40


@pytest.mark.parametrize(("when", "held"), [("when", (1, 1)), (None, (2, 3))])
def test_the_last_events_of_each_user(tmp_path, when, held):
    """Ties of time go by the order of the log; users with too few events are in train only."""
    table = log_of(rows=120, users=40, moments=4)
    validation, test = held
    _, rows = cut(table, tmp_path, by="last", user="user", time=when, validation=str(validation), test=str(test))
    expected = {name: set() for name in SPLITS}
    for user in range(40):
        own = [row for row in table.to_pylist() if row["user"] == user]
        own.sort(key=lambda row: (row[when] if when else 0, row["event"]))
        numbers = [row["event"] for row in own]
        if len(numbers) > validation + test:
            expected["test"] |= {*numbers[-test:]}
            expected["validation"] |= {*numbers[-test - validation : -test]}
            numbers = numbers[: -test - validation]
        expected["train"] |= {*numbers}
    assert {name: {*found} for name, found in events(rows).items()} == expected


def test_labels_of_every_kind(tmp_path, capsys):
    table = pa.table(
        {
            "rating": [1, 4, 5, 3, 4, 2],
            "price": [0.5, 2.0, None, 0.0, 1.5, 3.0],
            "kind": ["b", "a", "b", "c", "a", "c"],
            "watched": [datetime.time(0, 0, n, 500_000) for n in range(6)],
            "bought": [True, False, True, True, False, False],
            "at": [*range(6)],
        }
    )
    given = (
        *("liked = rating >= 4", "is_b = kind = 'b'", "paid = price != null", "stars=rating"),
        *("kind", "seconds = watched", "bought", "all = 1"),
    )
    summary, rows = cut(table, tmp_path, label=given, time="at", validation="0", test="5")
    found = rows["train"] + rows["test"]
    expected = {
        "liked": [0, 1, 1, 0, 1, 0],
        "is_b": [1, 0, 1, 0, 0, 0],
        "paid": [1, 1, 0, 1, 1, 1],
        "stars": [1, 4, 5, 3, 4, 2],
        "kind": [1, 0, 1, 2, 0, 2],
        "seconds": [n + 0.5 for n in range(6)],
        "bought": [1, 0, 1, 1, 0, 0],
        "all": [1] * 6,
    }
    assert {name: [row[name] for row in found] for name in expected} == expected
    assert {*found[0]} == {*expected, "at"}  # the columns of the labels are left out
    assert summary["labels"]["kind"]["classes"] == ["a", "b", "c"]
    printed = capsys.readouterr().out
    assert "left out 'rating': the label 'stars' comes from it" in printed
    assert "0 a, 1 b, 2 c" in printed


def test_rows_that_are_kept_and_columns_that_are_dropped(tmp_path):
    table = log_of()
    keep = ("rating != 3", "item<20")
    _, rows = cut(table, tmp_path, time="when", keep=keep, drop=("user",), label=("liked = rating > 3",))
    kept = [row["event"] for row in table.to_pylist() if row["rating"] != 3 and row["item"] < 20]
    assert sorted(one for found in events(rows).values() for one in found) == kept
    assert {*rows["test"][0]} == {"event", "item", "when", "liked"}


ODD = ['a "quoted" one', "SELECT", "time", "Ünïcode, comma", "two words", "own_0", "split", "number", "log", "it's"]


def test_columns_of_odd_names(tmp_path):
    """Among them keywords, names that the queries use, and names that commas or quotes part."""
    user, item, when, kind, rating, *others = ODD
    plain = log_of()
    values = [plain[name] for name in ("user", "item", "when", "event", "rating")]
    table = pa.table(dict(zip(ODD, [*values, *[plain["event"]] * len(others)], strict=True)))
    quoted = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in (user, item, kind)]
    _, rows = cut(
        table,
        tmp_path,
        **dict(time=when, user=user, item=item, label=(f"liked = {rating} >= 4",), history=3, catalogue=True),
        **dict(aggregate=(*quoted, "split", "number", "log", "own_0"), history_with=("it's",)),
    )
    _, plainly = cut(
        plain,
        tmp_path,
        "plain",
        **dict(time="when", user="user", item="item", label=("liked = rating >= 4",), history=3, catalogue=True),
        **dict(aggregate=("user", "item", "event"), history_with=("event",)),
    )
    for name in SPLITS:
        for odd, row in zip(rows[name], plainly[name], strict=True):
            assert odd[f"{user}_rate"] == row["user_rate"]
            assert odd[f"{kind}_count"] == odd["split_count"] == odd["log_count"] == row["event_count"]
            assert odd[f"{item}_history"] == row["item_history"]
            assert odd["it's_history"] == row["event_history"]
            assert odd["liked"] == row["liked"]


def test_text_files_of_every_form(tmp_path):
    table = log_of()
    _, expected = cut(table, tmp_path, time="when")
    pc.write_csv(table, tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().replace('"', "").splitlines()
    (tmp_path / "ratings.dat").write_text("\n".join(line.replace(",", "::") for line in lines[1:]))
    (tmp_path / "b.tsv").write_text("\n".join(line.replace(",", "\t") for line in lines))
    (tmp_path / "u.data").write_text("\n".join(line.replace(",", "\t") for line in lines[1:]))
    names = tuple(table.column_names)
    for file, more in {
        "a.csv": {},
        "b.tsv": {},
        "u.data": {"columns": names},
        "ratings.dat": {"columns": names, "delimiter": "::"},
    }.items():
        split((str(tmp_path / file),), str(tmp_path / "text" / file), time="when", **more)
        assert rows_in(tmp_path / "text" / file) == expected


def test_nulls_of_text_files(tmp_path):
    lines = ["a,b,c", *(f"{n},NULL,x" for n in range(20)), "21,,NA", '"22",1.5,"say ""a, b"""']
    (tmp_path / "a.csv").write_text("\n".join(lines))
    split((str(tmp_path / "a.csv"),), str(tmp_path / "out"), by="time", time="a", nulls=("NULL", "NA"))
    rows = [row for found in rows_in(tmp_path / "out").values() for row in found]
    assert [row["b"] for row in rows] == [None] * 21 + [1.5]
    assert [row["c"] for row in rows[-3:]] == ["x", None, 'say "a, b"']


def test_one_user(tmp_path):
    arguments = dict(time="when", user="user", item="item", label=("liked = rating >= 4",))
    more = dict(history=5, aggregate=("user",), catalogue=True)
    summary, rows = cut(log_of(users=1), tmp_path, **arguments, **more)
    assert [values["users"] for values in summary["splits"].values()] == [1, 1, 1]
    assert rows["test"][-1]["user_count"] > 300


def test_the_catalogue_has_every_item_with_its_own_columns(tmp_path, capsys):
    """Columns of one value for each item are of items; users, labels and changing columns are not."""
    table = log_of(items=80)
    numbers = table["item"].to_pylist()
    table = table.append_column("title", pa.array([f"title {one}" if one % 7 else None for one in numbers]))
    arguments = dict(time="when", user="user", item="item", label=("liked = rating >= 4",), catalogue=True)
    summary, rows = cut(table, tmp_path, **arguments)
    found = pq.read_table(tmp_path / "out/items.parquet").to_pylist()
    in_train = collections.Counter(row["item"] for row in rows["train"])
    assert found == [
        {"item": one, "title": f"title {one}" if one % 7 else None, "train_rows": in_train[one]}
        for one in sorted({*numbers})
    ]
    later = {*numbers} - in_train.keys()
    assert summary["catalogue"]["not in train"] == len(later) > 0
    assert f"the catalogue has {plural(len(later), 'item')} without a row in train" in capsys.readouterr().out


def test_files_of_items_and_users_are_joined(tmp_path):
    table = log_of()
    pq.write_table(
        pa.table({"item": [*range(5, 40)], "title": [f"t{n}" for n in range(5, 40)]}), tmp_path / "i.parquet"
    )
    (tmp_path / "u.csv").write_text("user,age\n" + "\n".join(f"{n},{n + 20}" for n in range(10)))
    arguments = dict(items=str(tmp_path / "i.parquet"), users=str(tmp_path / "u.csv"), catalogue=True)
    _, rows = cut(table, tmp_path, time="when", user="user", item="item", **arguments)
    for row in [row for found in rows.values() for row in found]:
        assert row["title"] == (f"t{row['item']}" if row["item"] >= 5 else None)
        assert row["age"] == (row["user"] + 20 if row["user"] < 10 else None)
    assert sum(map(len, rows.values())) == 400
    items = {row["item"]: row for row in pq.read_table(tmp_path / "out/items.parquet").to_pylist()}
    assert items.keys() == {*range(40)}
    assert (items[39]["title"], items[39]["train_rows"], items[3]["title"]) == ("t39", 0, None)


PLANTED = {
    "a copy": lambda rating, _: rating,
    "its side": lambda rating, _: "yes" if rating >= 4 else "no",
    "a threshold": lambda rating, event: (rating >= 4) * 1000.0 + event,
    "nulls": lambda rating, event: None if rating < 4 else event,
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_leaks_are_refused(tmp_path, kind):
    table = log_of()
    pairs = zip(table["rating"].to_pylist(), table["event"].to_pylist(), strict=True)
    table = table.append_column("leak", pa.array([PLANTED[kind](rating, event) for rating, event in pairs]))
    arguments = dict(time="when", user="user", item="item", label=("liked = rating >= 4",))
    with pytest.raises(InputError, match=r"'leak' gives the label 'liked' away: .*--drop leak"):
        cut(table, tmp_path, **arguments)
    assert {one.name for one in tmp_path.iterdir()} == {"log.parquet"}
    summary, rows = cut(table, tmp_path, "told", leaks="tell", **arguments)
    assert any("'leak' gives 'liked' away" in line for line in summary["told"])
    _, without = cut(table, tmp_path, "without", drop=("leak",), **arguments)
    assert "leak" in rows["train"][0]
    assert "leak" not in without["train"][0]


def test_no_leak_is_seen_where_there_is_none(tmp_path):
    """Few values, unique values, rare labels, and columns that are null at random."""
    chance = random.Random(1)
    rows = 3000
    table = pa.table(
        {
            "unique": [*range(rows)],
            "pair": [n // 2 for n in range(rows)],
            "few": [chance.randrange(3) for _ in range(rows)],
            "constant": ["x"] * rows,
            "empty": pa.nulls(rows, pa.int64()),
            "some": [None if chance.random() < 0.5 else n for n in range(rows)],
            "rare": [int(chance.random() < 0.01) for _ in range(rows)],
            "at": [*range(rows)],
        }
    )
    summary, _ = cut(table, tmp_path, time="at", label=("rare",))
    assert summary["told"] == []


def test_equal_rows_in_two_splits_are_told(tmp_path):
    table = pa.table({"user": [1, 1, 1, 1, 2, 2], "item": [5, 6, 7, 7, 8, 9]})
    summary, _ = cut(table, tmp_path, by="last", user="user", validation="0", test="1")
    assert summary["told"] == ["2 rows are equal to a row of another split; write each event once"]


def test_a_data_set_is_replaced_only_when_asked(tmp_path):
    cut(log_of(), tmp_path, time="when")
    with pytest.raises(InputError, match=r"would replace the data set .*--overwrite"):
        cut(log_of(), tmp_path, time="when")
    cut(log_of(rows=300), tmp_path, time="when", overwrite=True, validation="0")
    assert {one.name for one in tmp_path.iterdir()} == {"log.parquet", "out"}
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["summary.json", "test", "train"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.txt").write_text("")
    with pytest.raises(InputError, match=r"holds files but no summary\.json"):
        cut(log_of(), tmp_path, "other", time="when", overwrite=True)


def test_a_killed_run_leaves_nothing_that_looks_whole(tmp_path):
    pq.write_table(log_of(rows=20_000), tmp_path / "log.parquet")
    flags = ["--out", "out", "--time", "when", "--user", "user", "--item", "item", "--history", "50"]
    job = subprocess.Popen(
        [sys.executable, "-m", "trainer", "split", "--source", "log.parquet", *flags],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    while not [*tmp_path.glob(".out.*")]:
        assert job.poll() is None
        time.sleep(0.001)
    job.send_signal(signal.SIGKILL)
    job.wait()
    assert not (tmp_path / "out").exists()
    split((str(tmp_path / "log.parquet"),), str(tmp_path / "out"), time="when")
    assert {*rows_in(tmp_path / "out")} == {*SPLITS}


def test_other_storage(tmp_path):
    table = log_of()
    _, expected = cut(table, tmp_path, time="when")
    with fsspec.open("memory://logs/dt=2026-01-01/a.parquet", "wb") as file:
        pq.write_table(table.slice(0, 150), file)
    with fsspec.open("memory://logs/dt=2026-01-02/a.parquet", "wb") as file:
        pq.write_table(table.slice(150), file)
    for overwrite in (False, True):
        split(("memory://logs",), "memory://mine/splits", time="when", drop=("dt",), overwrite=overwrite)
    fs = fsspec.filesystem("memory")
    assert {name: pq.read_table(fs.open(f"/mine/splits/{name}/part-00000.parquet")).to_pylist() for name in SPLITS} == (
        expected
    )
    assert fs.exists("/mine/splits/summary.json")


WRONG = {
    "--source nothing.csv": "nothing.csv",
    "--source empty.csv": "has no rows",
    "--source headless.csv": "names a column '1', so it seems to be a row; name the columns with --columns",
    "--source a.csv b.csv": "no column 'c'",
    "--source torn.parquet": "torn.parquet",
    "--source ragged.csv": "ragged.csv, line 3: Expected Number of Columns: 2 Found: 3",
    "--source open.csv": "open.csv, line 2: Value with unterminated quote",
    "--source latin.csv": "not utf-8",
    "--source twice.csv": "names two columns 'a'",
    "--source nameless.csv": "has no name for column 2",
    "--source log.arrow": "Arrow IPC; CSV, TSV and Parquet",
    "--by time": "--by time needs --time, the column of the moment of an event; add it",
    "--by last": "needs --user",
    "--by week": "--by",
    "--time wen": "did you mean 'when'?",
    "--time title": "numbers, dates or timestamps",
    "--time when --user when": "named by two of",
    "--time hole": 'is null in 1 row; leave them out with --keep "hole != null"',
    "--by user --user hole": "is null in 1 row, and --by user needs it",
    "--time same": "all rows are of one moment",
    "--validation 0.6 --test 0.5": "leave nothing to train on",
    "--validation two": "a share of the rows, such as 0.1",
    "--by last --user user --test 0.1": "a number of events, such as 1",
    "--by last --user user --test 500": "leaves no row",
    "--time when --validation 900 --test 800": "not before --test",
    "--time when --test 800": "--validation is 0.1, a share, and --test is 800, a moment; write two moments, or",
    "--time when --validation soon --test 800": "a column of numbers, with 'soon'",
    "--label rating>=4": "has no name; give it one",
    "--label liked=ratings>=4": "did you mean 'rating'?",
    "--label liked=rating>=high": "a column of numbers, with 'high'; write a number",
    "--label liked=title>5": "column of text; use = or !=",
    "--label user=rating>=4": "as a column of the log is",
    "--label liked=hole>3": "has no value in 1 row",
    "--label a=1 a=rating>3": "is named 'a'",
    "--label liked=": "known: ",
    "--keep rating>9": "which no row meets",
    "--keep rating": "write a column, a comparison and a value",
    "--keep rating>null": "null goes with = and != only",
    "--drop price": "no column",
    "--aggregate user": "--aggregate needs --time",
    "--history 5 --time when": "--history needs --user",
    "--history -1": "at least 0",
    "--history-where rating>3": "--history is 0",
    "--catalogue": "--catalogue needs --item",
    "--items items.csv": "--items needs --item",
    "--items items.csv --item item": "more than one row with item = 1",
    "--users items.csv --user user": "no column 'user'",
    "--memory-mib 1": "at least 256",
    "--out log.csv": "a file; name a directory",
    "--out ''": "--out is empty",
    "--smoothing -1": "at least 0",
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    table = log_of(rows=50)
    for name, values in {
        "title": [f"t{n}" for n in range(50)],
        "hole": [None, *range(49)],
        "same": [1] * 50,
    }.items():
        table = table.append_column(name, pa.array(values))
    pc.write_csv(table, folder / "log.csv")
    (folder / "empty.csv").write_text("a,b\n")
    (folder / "headless.csv").write_text("1,2\n3,4\n")
    (folder / "a.csv").write_text("a,c\n1,2\n")
    (folder / "b.csv").write_text("a,b\n1,2\n")
    for name, content in {
        "ragged": b"a,b\n1,2\n3,4,5\n6,7\n",
        "open": b'a,b\n1,"x\n3,4\n',
        "latin": b"a,b\n1,\xe9\n",
        "twice": b"a,A\n1,2\n",
        "nameless": b"a,\n1,2\n",
    }.items():
        (folder / f"{name}.csv").write_bytes(content)
    (folder / "items.csv").write_text("item,name\n1,a\n1,b\n")
    (folder / "torn.parquet").write_bytes(b"PAR1 torn")
    with pa.ipc.new_file(folder / "log.arrow", table.schema) as file:
        file.write_table(table)
    return folder


@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_one_line(wrong, words, monkeypatch, capsys):
    monkeypatch.chdir(wrong)
    given = [word.replace("''", "") for word in words.split(" ")]
    usual = {"--source": "log.csv", "--out": "out"}
    more = [word for flag, value in usual.items() if flag not in given for word in (flag, value)]
    assert trainer(["split", *given, *more]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert WRONG[words] in said
    assert not (wrong / "out").exists()
    assert not [*wrong.glob(".*")]
