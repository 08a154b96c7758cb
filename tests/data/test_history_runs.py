"""A run whose histories come from a log is the run with written-out histories: losses, predictions, exports."""

import pyarrow.parquet as pq
import pytest
from exported import ask, export
from history_logs import BEGIN, LISTS, random_events, random_samples, write_events, written_out
from jobs import launch, losses
from predictions import read

from torchx_recsys.apps.sort_log.sort_log import sort_log
from trainer.__main__ import main as trainer

STEPS = 8
EVENTS = random_events(300)
SAMPLES = random_samples(256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two data sets of the same samples, and the log."""
    found = tmp_path_factory.mktemp("data")
    files = write_events(EVENTS, found / "events.parquet")
    sort_log((*files,), str(found / "log"), "user", "at")
    files = write_events([*EVENTS, EVENTS[0] | {"at": BEGIN + 10**6}], found / "more.parquet")
    sort_log((*files,), str(found / "log-2"), "user", "at", continues=str(found / "log"))
    pq.write_table(SAMPLES, found / "thin.parquet", row_group_size=32)
    fat = written_out(EVENTS, SAMPLES, length=5)
    pq.write_table(fat, found / "fat.parquet", row_group_size=32)
    for day in range(2):
        for name, table in (("thin", SAMPLES), ("fat", fat)):
            pq.write_table(table.slice(64 * day, 64), found / f"{name}-{day}.parquet")
    return found


def config_of(folder, name, log="log", **changes):
    data = {
        "train": [str(folder / f"{name}.parquet")],
        "validation": [str(folder / f"{name}.parquet")],
        "sparse": {
            "items": {"rows": 50, "pooling": "none", "max_ids": 4},
            "item": {
                "rows": 50,
                "column": "row_id",
                "ids": "modulo",
                "table": "items",
                "pooling": "none",
                "max_ids": 1,
            },
            "kinds": {"rows": 11, "ids": "hash", "weights": "scores"},
        },
        "global_batch_size": 16,
        "shuffle_window_rows": 40,
        "lanes": 4,
    }
    if name == "thin":
        lists = {one: column for one, column in LISTS.items() if one != "times"}
        data["history"] = {"log": str(folder / log), "user": "who", "time": "now", "length": 5, "columns": lists}
    return {
        "data": data,
        "model": {"name": "din", "target": "item", "history": "items", "embedding_dim": 8, "over_layers": [8]},
        "train": {"steps": STEPS} | changes,
        "report": {"interval_steps": 1, "tensorboard": False},
    }


def days(folder, name):
    """Returns the configuration of a run over two segments."""
    config = config_of(folder, name)
    data = config["data"] | {"train": [], "segments": {"path": str(folder / f"{name}-{{segment}}.parquet")}}
    return config | {"data": data, "train": {}}


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory):
    """Runs of both, one of them stopped in the middle and resumed with a log that has later events."""
    out = tmp_path_factory.mktemp("runs")
    jobs = [{"config": config_of(folder, name), "out": str(out / name)} for name in ("fat", "thin")]
    halves = config_of(folder, "thin", steps=3), config_of(folder, "thin", "log-2", steps=STEPS)
    jobs += [{"config": half, "out": str(out / "resumed")} for half in halves]
    jobs += [{"config": days(folder, name), "out": str(out / f"{name}-days")} for name in ("fat", "thin")]
    launch(jobs, 1, out)
    return out


def test_losses_are_equal_bit_for_bit_also_resumed_and_over_segments(runs):
    assert losses(runs / "thin") == losses(runs / "fat") == losses(runs / "resumed")
    assert losses(runs / "thin-days") == losses(runs / "fat-days")
    assert len(losses(runs / "thin-days")) == 8
    thin, fat = ((runs / name / "evaluations.jsonl").read_text() for name in ("thin", "fat"))
    assert thin == fat


@pytest.mark.more("batches are equal on any number of ranks")
def test_losses_are_equal_on_two_ranks(folder, tmp_path):
    launch([{"config": config_of(folder, name), "out": str(tmp_path / name)} for name in ("fat", "thin")], 2, tmp_path)
    assert losses(tmp_path / "thin") == losses(tmp_path / "fat")


def predicted(runs, folder, name, *flags):
    to = runs / f"predicted-{name}{len(flags)}"
    words = ["predict", runs / name / "config.toml", "--out", runs / name, "--source", folder / f"{name}.parquet"]
    assert trainer([str(word) for word in [*words, "--to", to, *flags]]) == 0
    return read(to)


def test_predictions_are_equal_and_lists_can_be_kept_beside_them(runs, folder):
    fat, thin = (predicted(runs, folder, name, "--keep-columns", "row_id", "items") for name in ("fat", "thin"))
    assert thin.to_pylist() == fat.to_pylist()


@pytest.mark.more("an export has the columns of the features, wherever they come from")
def test_a_request_to_an_export_carries_its_history(runs, folder):
    directory = export(runs, "thin", runs / "export")
    table = pq.read_table(folder / "fat.parquet")
    columns = {name: table[name].to_pylist() for name in ("items", "row_id", "kinds", "scores")}
    (answer,) = ask((directory, columns))
    (name,) = answer
    expected = predicted(runs, folder, "fat")[name].to_pylist()
    assert answer[name] == pytest.approx(expected, rel=1e-5)


def test_a_run_refuses_a_log_of_other_events(runs, folder, capfd):
    files = write_events(EVENTS[:-1], folder / "others.parquet")
    sort_log((*files,), str(folder / "other"), "user", "at")
    words = ["train", runs / "resumed/config.toml", "--out", runs / "resumed", "--data.history.log", folder / "other"]
    assert trainer([str(word) for word in [*words, "--train.steps", STEPS + 1]]) == 2
    error = capfd.readouterr().err
    assert "the log of its histories, data.history.log, has other events" in error
    assert "--data.accept-changed" in error
