"""Histories gathered from a log equal those that are written out by a plain loop: batches are equal bit for bit."""

import uuid

import fsspec
import pyarrow.parquet as pq
import pytest
from history_logs import LISTS, random_events, random_samples, write_events, written_out

from torchx_recsys.apps.sort_log.sort_log import sort_log
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.data.row_groups import RowGroupReader
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
def samples(tmp_path_factory):
    table, file = random_samples(150), tmp_path_factory.mktemp("samples") / "part.parquet"
    pq.write_table(table, file, row_group_size=32)
    return table, file


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("where", ["mapped", "ranges"])
def test_lists_are_those_of_a_plain_loop(where, options, events, log, samples):
    table, file = samples
    if where == "ranges":
        log, local = f"memory://{uuid.uuid4().hex}", log
        fsspec.filesystem("memory").put(local, log.removeprefix("memory:/"), recursive=True)
    keys, plain = OPTIONS[options]
    found, expected = rows_of(data_config(file, log, **keys)), written_out(events, table, **plain)
    for name in LISTS:
        assert found[name] == expected[name].to_pylist(), name


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
