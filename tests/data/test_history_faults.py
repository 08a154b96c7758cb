"""Faults of a log, and of its configuration, are found: an error of one line, or a line that tells of them."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from history_logs import BEGIN, random_events, random_samples, write_events

from torchx_recsys.apps.sort_log.sort_log import sort_log
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.core.section import validate
from trainer.data.dataset import find_files
from trainer.data.row_groups import RowGroupReader

KEYS = {"user": "user", "time": "at"}
EVENTS = random_events(60)


def sorted_log(folder, events=EVENTS, **arguments):
    files = write_events(events, folder / "events.parquet")
    return sort_log((*files,), str(folder / "log"), **KEYS | arguments)


def sorted_table(folder, changed, **arguments):
    """Sorts the events with changed columns."""
    (file,) = write_events(EVENTS, folder / "events.parquet")
    table = pq.read_table(file)
    for name, column in changed.items():
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, file)
    return sort_log((file,), str(folder / "log"), **KEYS | arguments)


def config(folder, **history):
    tree = {"train": [str(folder / "samples.parquet")], "sparse": {"items": {"rows": 50}}}
    keys = {"log": str(folder / "log"), "user": "who", "time": "now", "length": 3, "columns": {"items": "item"}}
    return validate(DataConfig, tree | {"history": keys | history}, lambda _: "")


def read(folder, **history):
    """Reads the histories of the samples."""
    data = config(folder, **history)
    files = find_files("data.train", data.train, data)
    reader = RowGroupReader(files, data)
    return [reader.read(group)("items") for group in files.row_groups]


def write_samples(folder, **changed):
    table = random_samples(20)
    others = {
        name: column for name, column in zip(table.column_names, table.columns, strict=True) if name not in changed
    }
    pq.write_table(pa.table(others | changed), folder / "samples.parquet")


def refused(call, *parts):
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_events_in_no_order_are_sorted_and_ties_are_told(tmp_path):
    about = sorted_log(tmp_path)
    assert any("at the time of another event" in line for line in about["told"])
    batch = pa.ipc.open_file(str(tmp_path / "log/events.arrow")).get_batch(0)
    users = pa.ipc.open_file(str(tmp_path / "log/users.arrow")).get_batch(0)
    for first, events in zip(users["first"].to_pylist(), users["events"].to_pylist(), strict=True):
        times = batch["at"].to_pylist()[first : first + events]
        assert times == sorted(times)


@pytest.mark.parametrize("duplicates", ["keep", "drop", "refuse"])
def test_duplicate_events_are_told_dropped_or_refused(duplicates, tmp_path):
    events = EVENTS + EVENTS[:5]
    if duplicates == "refuse":
        refused(lambda: sorted_log(tmp_path, events, duplicates="refuse"), "--duplicates", "5 events")
        assert not (tmp_path / "log").exists()
        return
    about = sorted_log(tmp_path, events, duplicates=duplicates)
    assert about["events"] == len(EVENTS) + 5 * (duplicates == "keep")
    assert any(line.startswith("5 events are copies") for line in about["told"])


def test_events_without_a_user_are_left_out_and_told(tmp_path):
    events = [event | {"user": None if place < 4 else event["user"]} for place, event in enumerate(EVENTS)]
    about = sorted_log(tmp_path, events)
    assert about["events"] == len(EVENTS) - 4
    assert "left out 4 events without a 'user'" in about["told"]


NULLS = pa.array([None if place == 7 else 1 for place in range(len(EVENTS))], pa.int64())
FAULTS = {
    "null time": ({"at": NULLS}, {}, ("--time is 'at'", "null in 1 event", "--where")),
    "null value": ({"item": NULLS}, {}, ("column 'item' is null in 1 event", "--where")),
    "milliseconds": ({"at": pa.array([one["at"] * 1000 for one in EVENTS])}, {}, ("'at'", "no time in seconds")),
    "times as text": ({"at": pa.array([str(one["at"]) for one in EVENTS])}, {}, ("--time is 'at'", "VARCHAR")),
    "users as numbers": ({"user": pa.array([0.5] * len(EVENTS))}, {}, ("--user is 'user'", "DOUBLE")),
    "a list": ({"item": pa.array([[1]] * len(EVENTS))}, {"values": ("item",)}, ("--values names 'item'",)),
    "no such value": ({}, {"values": ("itme",)}, ("--values names 'itme'", "item")),
    "no such user": ({}, {"user": "who"}, ("--user names 'who'",)),
    "nothing left": ({}, {"where": ("item > 1000",)}, ("--source has no events",)),
    "another arrival": ({}, {"arrived": "kind"}, ("--arrived is 'kind'", "VARCHAR")),
    "little memory": ({}, {"memory_mib": 1}, ("--memory-mib is 1",)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_log_that_cannot_be_sorted_is_refused_before_anything_is_written(fault, tmp_path):
    changed, arguments, parts = FAULTS[fault]
    refused(lambda: sorted_table(tmp_path, changed, **arguments), *parts)
    assert not (tmp_path / "log").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("log")
    sorted_log(found)
    write_samples(found)
    return found


SAMPLES = {
    "milliseconds": ({"now": [1000 * BEGIN] * 20}, {}, ("row 0", "'now'", "no time in seconds")),
    "days": ({"now": [20_000] * 20}, {}, ("row 0", "'now'", "no time in seconds")),
    "no time": ({"now": [None if row == 4 else BEGIN for row in range(20)]}, {}, ("row 4", "'now'", "null")),
    "times as text": ({"now": ["2026-01-01"] * 20}, {}, ("'now' is of type string", "data.history.time")),
    "users as text": ({"who": ["1"] * 20}, {}, ("'who' is of type string", "integers")),
    "no user": ({}, {"user": "whom"}, ("no column 'whom'", "data.history.user")),
    "own lists": ({"items": [[1]] * 20}, {}, ("there is a column 'items'", "data.history.columns")),
    "no such column": ({}, {"columns": {"items": "itme"}}, ("data.history.columns.items is 'itme'", "item")),
    "no such condition": ({}, {"where": [["stars", ">", 3]]}, ("data.history.where", "stars")),
    "condition of text": ({}, {"where": [["kind", ">", 3]]}, ("data.history.where", "a string")),
    "no such kind": ({}, {"each": "sort"}, ("data.history.each is 'sort'",)),
}


@pytest.mark.parametrize("fault", SAMPLES)
def test_samples_that_do_not_go_with_the_log_are_refused(fault, folder, tmp_path):
    changed, keys, parts = SAMPLES[fault]
    shutil.copytree(folder / "log", tmp_path / "log")
    write_samples(tmp_path, **changed)
    refused(lambda: read(tmp_path, **keys), *parts)


CONFIGS = {
    "no log": ({"log": None}, "data.history.log is not"),
    "no user": ({"user": None}, "data.history.user is not"),
    "no time": ({"time": None}, "data.history.time is not"),
    "no length": ({"length": None}, "data.history.length is not"),
    "no lists": ({"columns": {}}, "data.history.columns is empty"),
    "a list nobody reads": ({"columns": {"items": "item", "kinds": "kind"}}, "which no feature reads"),
    "the user's name": ({"columns": {"items": "item", "who": "kind"}}, "which data.history.user is"),
    "half a condition": ({"where": [["item", ">"]]}, "data.history.where"),
}


@pytest.mark.parametrize("fault", CONFIGS)
def test_a_wrong_configuration_is_refused(fault, tmp_path):
    keys, part = CONFIGS[fault]
    refused(lambda: config(tmp_path, **keys), part)


DAMAGES = {
    "no log": (lambda log: shutil.rmtree(log), "holds no log.json"),
    "cut off": (lambda log: (log / "events.arrow").write_bytes(b"ARROW1"), "has 6 bytes"),
    "a file is gone": (lambda log: (log / "users.arrow").unlink(), "users.arrow is missing"),
    "no JSON": (lambda log: (log / "log.json").write_text("{"), "log.json is damaged"),
    "another version": (lambda log: (log / "log.json").write_text('{"version": 7}'), "a log of version 7"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_that_is_not_there_or_not_whole_is_refused(damage, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    change, part = DAMAGES[damage]
    change(tmp_path / "log")
    refused(lambda: read(tmp_path), "data.history.log", part)


def test_a_log_that_is_replaced_between_listing_and_reading_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    data = config(tmp_path)
    files = find_files("data.train", data.train, data)
    sorted_log(tmp_path, EVENTS[:-1], overwrite=True)
    refused(lambda: RowGroupReader(files, data), "was replaced", "start the job again")


def test_a_log_with_later_events_continues_and_one_with_others_does_not(folder, tmp_path):
    before = json.loads((folder / "log/log.json").read_text())
    files = find_files("data.train", config(folder).train, config(folder))
    later = [{"user": 3, "at": before["last"] + 5, "item": 9, "kind": "new", "score": 0.5}]
    write_samples(tmp_path)
    about = sorted_log(tmp_path, EVENTS + later, continues=str(folder / "log"))
    assert about["continues"] == [before["fingerprint"]] != [about["fingerprint"]]
    moved = config(folder, log=str(tmp_path / "log"))
    again = find_files("data.train", moved.train, moved)
    assert again.fingerprint != files.fingerprint
    assert again.was(files.fingerprint)
    late = [later[0] | {"at": before["last"] - 5}]
    refused(
        lambda: sorted_log(tmp_path / "late", EVENTS + late, continues=str(folder / "log")),
        "--continues",
        "not the same",
    )
    sorted_log(tmp_path / "other", EVENTS[:-1])
    other = config(folder, log=str(tmp_path / "other/log"))
    changed = find_files("data.train", other.train, other)
    assert not changed.was(files.fingerprint)
    assert "data.history.log" in changed.change_since(files.description())


def test_an_event_that_came_late_is_where_it_came(tmp_path):
    table = pa.table({"user": [1, 1], "at": [BEGIN, BEGIN + 10], "came": [BEGIN + 50, None], "item": [7, 8]})
    pq.write_table(table, tmp_path / "events.parquet")
    sort_log((str(tmp_path / "events.parquet"),), str(tmp_path / "log"), **KEYS, values=("item",), arrived="came")
    nows = BEGIN + np.array([0, 10, 11, 50, 51])
    pq.write_table(pa.table({"who": [1] * 5, "now": nows, "label": [0.0] * 5}), tmp_path / "samples.parquet")
    (column,) = read(tmp_path)
    assert column.to_pylist() == [[], [], [8], [8], [8, 7]]


def test_times_of_other_units_are_compared_exactly(tmp_path):
    moments = pa.array([BEGIN * 10**6 + one for one in (0, 1, 10**6)], pa.timestamp("us"))
    pq.write_table(pa.table({"user": [1] * 3, "at": moments, "item": [7, 8, 9]}), tmp_path / "events.parquet")
    sort_log((str(tmp_path / "events.parquet"),), str(tmp_path / "log"), **KEYS, values=("item",))
    for now, expected in (
        (pa.array([BEGIN, BEGIN + 1, BEGIN + 2]), [[], [7, 8], [7, 8, 9]]),
        (pa.array([BEGIN * 10**9 + one for one in (0, 1, 1001)], pa.timestamp("ns")), [[], [7], [7, 8]]),
        (pa.array([BEGIN // 86_400, BEGIN // 86_400 + 1, 0], pa.int32()).cast(pa.date32()), [[], [7, 8, 9], []]),
    ):
        pq.write_table(pa.table({"who": [1] * 3, "now": now, "label": [0.0] * 3}), tmp_path / "samples.parquet")
        (column,) = read(tmp_path)
        assert column.to_pylist() == expected
