"""Importance: planted features rank as planted, drops are those of permuted files, and wrong input is one line."""

import json
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import retrieval
from command import run_trainer
from jobs import config, launch
from sequences import sequence_config

from torchx_recsys.apps.importance.units import units_of
from trainer.__main__ import main as trainer
from trainer.config.root import Config

ROWS = 3000


def write(folder, seed):
    """Writes what tells the label (`useful`, `user`, `a` with `b`, `past`), what does not, and what is made of it."""
    random, folder = np.random.default_rng(seed), folder
    folder.mkdir()
    useful, useless = random.standard_normal((2, ROWS)).astype(np.float32)
    user, a, b = (random.integers(0, rows, ROWS) for rows in (20, 3, 3))
    past = [random.integers(0, 9, length).tolist() for length in random.integers(0, 4, ROWS)]
    told = useful + 2 * np.sin(user) + np.where(a == b, 1, -1) + [1.0 if 4 in one else -0.5 for one in past]
    label = (random.random(ROWS) < 1 / (1 + np.exp(-told))).astype(np.float32)
    columns = {"useful": useful, "useless": useless, "user": user, "a": a, "b": b, "past": past, "label": label}
    columns |= {
        "leak": (label + 0.3 * random.standard_normal(ROWS)).astype(np.float32),
        "at": [[1] * len(one) for one in past],
    }
    columns["noise"] = random.integers(0, 20, ROWS)
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=700)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("importance")
    tree = config(write(folder / "train", 0), train__steps=150, report__interval_steps=50)
    tree["data"] |= {
        "validation": [str(write(folder / "validation", 1))],
        "dense": {"useful": {}, "useless": {}, "leak": {}},
        "sparse": {
            "user": {"rows": 20},
            "noise": {"rows": 20},
            "a": {"rows": 3},
            "a_and_b": {"columns": ["a", "b"], "rows": 50, "ids": "hash"},
            "past": {"rows": 9, "pooling": "mean"},
        },
    }
    tree["optimizer"]["dense"] = {"name": "adam", "learning_rate": 0.005}
    launch([{"config": tree, "out": str(folder / "run")}], 1, folder)
    return folder / "run"


@pytest.fixture
def importance(run, capfd):
    """Finds what matters in this process; returns importance.json, or the error."""

    def importance(*flags, out=run, code=0):
        words = ["importance", run / "config.toml", "--out", out, *flags]
        assert trainer([str(word) for word in words]) == code
        said = capfd.readouterr()
        return said.err if code else (json.loads((out / "importance.json").read_text()), said.out)

    return importance


def test_planted_features_rank_as_planted(importance):
    found, said = importance()
    assert {key: found[key] for key in ("split", "metric", "rows", "repeats")} == {
        "split": "validation",
        "metric": "auc",
        "rows": ROWS,
        "repeats": 5,
    }
    drops = {one["name"]: one["drop"] for one in found["features"]}
    assert next(iter(drops)) == "leak"
    assert {*[*drops][-2:]} == {"useless", "noise"}
    assert {*drops} == {"leak", "useful", "user", "a", "b", "past", "noise", "useless"}
    assert min(drops[name] for name in ("useful", "user", "b")) > 10 * abs(drops["useless"])
    assert all(one["spread"] < 0.03 for one in found["features"])
    assert "3,000 rows of data.validation; 8 features, each permuted 5 times" in said
    assert "no more than chance: " in said


def permuted(run, folder, name, repeat):
    """Writes the validation split with a column permuted as by the command."""
    table = pq.read_table(run.parent / "validation")
    order = np.random.default_rng([0, zlib.crc32(name.encode()), repeat]).permutation(ROWS)
    place = table.column_names.index(name)
    folder.mkdir(exist_ok=True)
    pq.write_table(table.set_column(place, name, table[name].take(pa.array(order))), folder / f"{name}{repeat}.parquet")
    return folder / f"{name}{repeat}.parquet"


@pytest.mark.parametrize("name", ["useful", "past", "b"])  # a number, a list, and a part of a cross
def test_drops_are_those_of_files_with_the_column_permuted(name, run, importance, tmp_path):
    found, _ = importance("--repeats", "2", "--metric", "log_loss")
    assert trainer(["evaluate", str(run / "config.toml"), "--out", str(run), "--split", "validation"]) == 0
    base = json.loads((run / "evaluation-validation.json").read_text())["log_loss"]
    after = []
    for repeat in range(2):
        file = str(permuted(run, tmp_path / "permuted", name, repeat))
        flags = ["--out", str(run), "--split", "validation", "--data.validation", file]
        assert trainer(["evaluate", str(run / "config.toml"), *flags]) == 0
        after.append(json.loads((run / "evaluation-validation.json").read_text())["log_loss"])
    (one,) = [one for one in found["features"] if one["name"] == name]
    assert found["value"] == pytest.approx(base, rel=1e-6)
    assert one["drop"] == pytest.approx(np.mean(after) - base, rel=1e-4, abs=1e-6)
    assert one["spread"] == pytest.approx(np.std(after, ddof=1), rel=1e-3, abs=1e-6)


def test_ranks_and_batches_change_nothing_and_rows_are_bounded(run, importance):
    flags = ("--repeats", "2", "--rows", "1000")
    alone, said = importance(*flags)
    assert "1,000 of 3,000 rows of data.validation" in said
    words = ["importance", run / "config.toml", "--out", run, *flags, "--batch-size", "77"]
    assert run_trainer(*words, ranks=2).returncode == 0
    together = json.loads((run / "importance.json").read_text())
    assert "<h2>Importance of features</h2>" in (run / "run.html").read_text()
    for one, other in zip(alone["features"][:5], together["features"][:5], strict=True):
        assert one["name"] == other["name"]
        for key in ("drop", "spread"):
            assert one["metrics"]["log_loss"][key] == pytest.approx(other["metrics"]["log_loss"][key], abs=1e-6)


def test_items_of_a_catalogue_lose_their_features_too(tmp_path, capfd):
    tree = retrieval.settings(retrieval.write_data(tmp_path / "data"), train__steps=3)
    launch([{"config": tree, "out": str(tmp_path / "run")}], 1, tmp_path)
    words = ["importance", tmp_path / "run/config.toml", "--out", tmp_path / "run", "--repeats", "2"]
    assert trainer([str(word) for word in words]) == 0
    found = json.loads((tmp_path / "run/importance.json").read_text())
    assert {one["name"] for one in found["features"]} == {"d0", "s0", "s1", "tags", "price", "had"}
    drops = {one["name"]: one["drop"] for one in found["features"]}
    assert drops.pop("had") == 0  # is no feature of the towers, and tells which items a query has had all the same
    assert all(drops.values())  # each changes the ranks, those of queries and of items alike


def test_what_belongs_together_is_permuted_together(tmp_path):
    tree = sequence_config(tmp_path, "hstu")
    assert [unit.name for unit in units_of(Config.model_validate(tree))] == [
        "d0",
        "d1",
        "city",
        "item",
        "now",
        "history + rated + at",
    ]
    (rated,) = [unit for unit in units_of(Config.model_validate(tree)) if "rated" in unit.name]
    assert rated.columns == {"history", "rated", "seconds", "at"}
    tree = config(tmp_path, data__dense={"age": {}, "at": {"transform": "hour"}})
    tree["data"]["sparse"] = {
        "age": {"rows": 3, "buckets": [20.0, 40.0]},
        "day": {"column": "at", "transform": "weekday", "rows": 7},
    }
    assert [unit.name for unit in units_of(Config.model_validate(tree))] == ["age", "at + day"]


WRONG = {
    "--rows is 1; it must be at least 2": ["--rows", "1"],
    "--repeats is 1; it must be at least 2": ["--repeats", "1"],
    "--seed is -1; it must be at least 0": ["--seed", "-1"],
    "--batch-size is 0; it must be at least 1": ["--batch-size", "0"],
    "--split is test, but data.test is empty": ["--split", "test"],
    "--metric is 'accurate'; allowed: ": ["--metric", "accurate"],
    "--metric is 'calibration'; allowed: ": ["--metric", "calibration"],
    "--checkpoint is 'latest'; allowed: newest, best": ["--checkpoint", "latest"],
    "--checkpoint is 7, which is no committed checkpoint": ["--checkpoint", "7"],
    "--checkpoint is 'best', but the run": ["--checkpoint", "best"],
    "no column 'gone'": ["--data.dense.useful.column", "gone"],
    "data.validation": ["--data.validation", "nowhere.parquet"],
    "--row": ["--row", "5"],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_input_is_one_line(message, importance):
    error = importance(*WRONG[message], code=2)
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_run_without_a_checkpoint_is_refused(importance, tmp_path):
    error = importance(out=tmp_path, code=2)
    assert "which holds no committed checkpoint; train first" in error
