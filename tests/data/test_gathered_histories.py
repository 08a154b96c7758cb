"""Histories gathered from a log equal those that are written out by a plain loop: batches are equal bit for bit."""

import uuid

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from history_logs import LISTS, random_events, random_samples, write_events, written_out
from object_store import object_store

from torchx_recsys.apps.sort_log.sort_log import sort_log
from torchx_recsys.apps.split.split import split
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig, SelectConfig
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.data.row_groups import RowGroupReader, find_training_files
from trainer.rules.plain_types import plain_array

FEATURES = {
    "items": {"rows": 50, "pooling": "none", "max_ids": 4},
    "kinds": {"rows": 11, "ids": "hash"},
    "items_now": {"rows": 50, "column": "items", "times": "times", "before": "now", "within_seconds": 60},
    "weighted": {"rows": 50, "column": "items", "weights": "scores"},
}
OPTIONS = {
    "last": ({"length": 5}, {"length": 5}),
    "one": ({"length": 1}, {"length": 1}),
    "long": ({"length": 1000}, {"length": 1000}),
    "where": (
        {"length": 3, "where": [["kind", "in", ["play", "like"]], ["item", ">", 10]]},
        {"length": 3, "where": lambda event: event["kind"] != "skip" and event["item"] > 10},
    ),
    "each": ({"length": 2, "each": "kind"}, {"length": 2, "each": "kind"}),
    "among": ({"length": 4, "among": 6}, {"length": 4, "among": 6}),
    "all": (
        {"length": 2, "each": "kind", "among": 9, "where": [["score", "<", 0.75]]},
        {"length": 2, "each": "kind", "among": 9, "where": lambda event: event["score"] < 0.75},
    ),
}


def sorted_log(folder, events, out=None, **arguments):
    """Returns the directory of the sorted log."""
    out = str(out or folder / "log")
    files = write_events(events, folder / "events/a.parquet", folder / "events/b.parquet")
    sort_log((*files,), out, **{"user": "user", "time": "at"} | arguments)
    return out


def data_config(source, log=None, **history):
    tree = {"train": [str(source)], "sparse": FEATURES, "global_batch_size": 12, "shuffle_window_rows": 40}
    if log:
        tree["history"] = {"log": log, "user": "who", "time": "now", "columns": LISTS, "length": 5} | history
    return DataConfig.model_validate(tree)


def rows_of(config):
    """Returns the lists of all samples, by name."""
    files = find_files("data.train", config.train, config)
    reader = RowGroupReader(files, config)
    groups = [reader.read(group) for group in files.row_groups]
    return {name: [row for column in groups for row in plain_array(column(name)).to_pylist()] for name in LISTS}


@pytest.fixture(scope="module")
def events():
    return random_events(400)


@pytest.fixture(scope="module")
def log(events, tmp_path_factory):
    return sorted_log(tmp_path_factory.mktemp("log"), events)


@pytest.fixture(scope="module")
def stored_log(events, tmp_path_factory):
    """The log on storage that is not mounted."""
    return sorted_log(tmp_path_factory.mktemp("stored"), events, f"memory://{uuid.uuid4().hex}/log")


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    table, file = random_samples(150), tmp_path_factory.mktemp("samples") / "part.parquet"
    pq.write_table(table, file, row_group_size=32)
    return table, file


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("where", ["mapped", "ranges"])
def test_lists_are_those_of_a_plain_loop(where, options, events, log, samples, request):
    table, file = samples
    log = log if where == "mapped" else request.getfixturevalue("stored_log")
    keys, plain = OPTIONS[options]
    found, expected = rows_of(data_config(file, log, **keys)), written_out(events, table, **plain)
    for name in LISTS:
        assert found[name] == expected[name].to_pylist(), name


@pytest.mark.parametrize("options", OPTIONS)
def test_a_planted_leak_is_in_no_history(options, events, samples, tmp_path):
    table, file = samples
    rows = [row for row in table.select(["who", "now"]).to_pylist() if row["who"] is not None]
    own = [{"user": row["who"], "item": 7, "kind": "play", "score": 0.5} for row in rows]
    planted = [event | {"at": row["now"] + later} for event, row in zip(own, rows, strict=True) for later in (0, 5)]
    config = data_config(file, sorted_log(tmp_path, events + planted), **OPTIONS[options][0])
    times = rows_of(config)["times"]
    assert sum(map(len, times)) > 100
    assert all(time < now for past, now in zip(times, table["now"].to_pylist(), strict=True) for time in past)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("options", ["last", "all"])
def test_batches_equal_those_of_written_out_histories_bit_for_bit(options, ranks, events, log, samples, tmp_path):
    table, file = samples
    keys, plain = OPTIONS[options]
    pq.write_table(written_out(events, table, **plain), tmp_path / "fat.parquet", row_group_size=32)
    gathered, fat = (
        _batches(one, ranks) for one in (data_config(file, log, **keys), data_config(tmp_path / "fat.parquet"))
    )
    assert len(gathered) == len(fat) > 10
    for ours, theirs in zip(gathered, fat, strict=True):
        assert [one.tobytes() for one in ours] == [one.tobytes() for one in theirs]


def _batches(config, ranks):
    """Returns the arrays of the batches of every rank, shuffled, from step 3 to the end of the second epoch."""
    files = find_files("data.train", config.train, config)
    found = []
    for rank in range(ranks):
        loader = Loader(files, config, Lanes(files.rows, 4, config.global_batch_size), rank, ranks, 5, True)
        for batch in loader.batches(3, 2 * loader.steps_per_epoch):
            ids = batch.sparse
            tensors = batch.labels, ids.values(), ids.lengths(), ids.weights()
            found.append([tensor.numpy() for tensor in tensors])
    return found


def test_chosen_samples_have_their_own_histories(events, log, samples):
    table, file = samples
    config = data_config(file, log).model_copy(update={"select": SelectConfig(filter=[["label", "==", 1]])})
    files = find_training_files(config, seed=0)
    reader = RowGroupReader(files, config, [*config.columns, "row_id"])
    expected = written_out(events, table, length=5).to_pylist()
    found = [reader.read(group) for group in files.row_groups]
    rows = [row for column in found for row in plain_array(column("row_id")).to_pylist()]
    lists = [one for column in found for one in plain_array(column("items")).to_pylist()]
    assert len(rows) == sum(row["label"] for row in expected) > 0
    assert lists == [expected[row]["items"] for row in rows]


@pytest.mark.parametrize("reader", ["csv", "arrow"])
def test_samples_may_be_of_any_format(reader, events, log, samples, tmp_path):
    table, _ = samples
    file = tmp_path / f"rows.{reader}"
    if reader == "csv":
        csv.write_csv(table, file)
    else:
        feather.write_feather(table, file, compression="uncompressed")
    found = rows_of(data_config(file, log).model_copy(update={"reader": reader}))
    assert found["items"] == written_out(events, table, length=5)["items"].to_pylist()


def test_lists_are_those_that_a_split_writes(tmp_path):
    events = [
        event | {"user": None if place % 9 == 4 else event["user"]} for place, event in enumerate(random_events(300))
    ]
    (file,) = write_events(events, tmp_path / "events.parquet")
    keys = {"time": "at", "user": "user", "item": "item", "by": "share", "validation": "0", "test": "0"}
    flags = {"history": 4, "history_with": ("at", "score"), "history_where": ("kind != skip", "item > 5")}
    split((file,), str(tmp_path / "out"), label=("label = 1",), **keys, **flags)
    sort_log((file,), str(tmp_path / "log"), "user", "at", where=("kind != skip", "item > 5"))
    lists = {"items": "item", "scores": "score", "times": "at"}
    history = {"log": str(tmp_path / "log"), "user": "user", "time": "at", "length": 4, "columns": lists}
    sparse = {"items": {"rows": 50, "weights": "scores", "times": "times", "before": "at"}}
    config = DataConfig.model_validate({"train": [str(tmp_path / "out/train")], "sparse": sparse, "history": history})
    written = ["item_history", "score_history", "at_history"]
    files = find_files("data.train", config.train, config)
    (group,) = files.row_groups
    column = RowGroupReader(files, config, [*lists, *written]).read(group)
    for ours, theirs in zip(lists, written, strict=True):
        assert plain_array(column(ours)).to_pylist() == plain_array(column(theirs)).to_pylist()


def test_users_may_be_text(events, samples, tmp_path):
    table, _ = samples
    (file,) = write_events(events, tmp_path / "events.parquet")
    named = pq.read_table(file)
    pq.write_table(named.set_column(0, "user", _names(named["user"])), file)
    sort_log((file,), str(tmp_path / "log"), "user", "at")
    pq.write_table(table.set_column(0, "who", _names(table["who"])), tmp_path / "part.parquet")
    found = rows_of(data_config(tmp_path / "part.parquet", str(tmp_path / "log")))
    expected = written_out(events, table, length=5)
    for name in LISTS:
        assert found[name] == expected[name].to_pylist(), name


def _names(users):
    return pa.array([None if one is None else f"user {one}" for one in users.to_pylist()])


@pytest.mark.more("storage in memory sends ranges, too")
def test_users_are_ranges_of_a_log_on_s3(events, samples, tmp_path, monkeypatch):
    table, file = samples
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.fs.mkdir("bucket")
        log = sorted_log(tmp_path, events, "s3://bucket/log")
        found = rows_of(data_config(file, log))
        with (
            store.faults({"fault": "403", "method": "GET", "path": "events"}),
            pytest.raises(
                InputError, match=r"^s3://bucket/log/events\.arrow: histories cannot be gathered \(AccessDenied"
            ),
        ):
            rows_of(data_config(file, log))
    assert found["items"] == written_out(events, table, length=5)["items"].to_pylist()
