"""`torchx sweep tune`: the sweep file that it makes of a configuration, and one line for what is wrong."""

import os
import tomllib
from pathlib import Path

import pytest
from command import write_config
from torchx.cli.main import main

from torchx_recsys.sweeps.command import SweepCommand
from torchx_recsys.sweeps.file import read_sweep
from torchx_recsys.sweeps.tune import write_sweep

CONFIG = {
    "data": {
        "train": ["train.parquet"],
        "validation": ["validation.parquet"],
        "dense": {"price": {}},
        "sparse": {"user": {"rows": 9}},
    },
    "model": {"name": "deepfm", "embedding_dim": 16, "dropout": 0.1},
    "evaluate": {"every_steps": 50},
}


def parsed(*words):
    import argparse

    parser = argparse.ArgumentParser()
    SweepCommand().add_arguments(parser)
    return parser.parse_args(["tune", *words])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "c.toml", CONFIG)
    return tmp_path


def test_the_space_is_around_the_values_of_the_configuration(folder):
    said = []
    sweep = read_sweep(write_sweep(parsed("c.toml", "--out", "tuned", "--set", "train.epochs=3"), said.append))
    assert sweep.start == {
        "optimizer.sparse.learning_rate": 0.02,
        "optimizer.dense.learning_rate": 0.02,
        "model.dropout": 0.1,
        "model.embedding_dim": 16,
        "optimizer.sparse.weight_decay": 1e-8,
    }
    assert [*sweep.dimensions] == ["model.embedding_dim", *(key for key in sweep.start if key != "model.embedding_dim")]
    assert sweep.dimensions["optimizer.dense.learning_rate"].ends == [0.0025, 0.16]
    config = sweep.configured(sweep.start)
    assert (config.checkpoint.keep.best, config.checkpoint.every_steps, config.train.epochs) == ("auc", 50, 3)
    assert config.optimizer.sparse.weight_decay_mode == "l2"
    assert (sweep.aim, sweep.keeps_best, sweep.settings.min_steps, said) == ("auc", True, 100, [])
    assert sweep.settings.arguments["cpu"] == max(1, len(os.sched_getaffinity(0)) // 2)


def test_a_key_that_the_configuration_cannot_change_stays_with_a_word(folder):
    said = []
    flags = ("--set", "optimizer.sparse.name=sgd", "--aim", "log_loss")
    sweep = read_sweep(write_sweep(parsed("c.toml", "--out", "tuned", *flags), said.append))
    assert "optimizer.sparse.weight_decay" not in sweep.dimensions
    (line,) = said
    assert line.startswith("optimizer.sparse.weight_decay stays as it is: optimizer.sparse.weight_decay is ")
    assert not sweep.higher


WRONG = {
    "configuration 'nosuch.toml' (": ["nosuch.toml"],
    "--set is 'train.epochs'; write KEY=VALUE": ["c.toml", "--set", "train.epochs"],
    "unknown flag --train.epoch; did you mean": ["c.toml", "--set", "train.epoch=3"],
    "evaluate.every_steps is 0, so that no trial could be": ["c.toml", "--set", "evaluate.every_steps=0"],
    "aim is 'acu'; allowed: auc": ["c.toml", "--aim", "acu"],
    "aim is 'calibration'; allowed: auc": ["c.toml", "--aim", "calibration"],
    "trials is 0: input should be greater": ["c.toml", "--trials", "0"],
    "at_once is 0: input should be greater": ["c.toml", "--at_once", "0"],
    "hours is 0.0: input should be greater": ["c.toml", "--hours", "0"],
    "data.validation is empty, so that trials have no value": ["no_validation.toml"],
    "unknown component 'dlrm.single'; did you mean": ["c.toml", "--component", "dlrm.single"],
    "component: must take `config`, `out`": ["c.toml", "--component", "data.movielens"],
    "out is 's3://bucket/tuned': Optuna's journal needs a dir": ["c.toml", "--out", "s3://bucket/tuned"],
    "--out is 'full', which has other files; name a new directory": ["c.toml", "--out", "full"],
    "--out is 'other', which holds another search": ["c.toml", "--out", "other"],
    "--out is 'c.toml', which cannot be written: ": ["c.toml", "--out", "c.toml"],
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_input_is_one_line_and_nothing_is_submitted(message, folder, capsys):
    data = {key: value for key, value in CONFIG["data"].items() if key != "validation"}
    write_config(folder / "no_validation.toml", CONFIG | {"data": data})
    for name, file in (("full", "notes.txt"), ("other", "sweep.toml")):
        (folder / name).mkdir()
        (folder / name / file).write_text("mine")
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as end:
        main(["sweep", "tune", "--out", "tuned", *WRONG[message]])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith("torchx sweep: error: ")
    assert message in line
    assert sorted(folder.rglob("*")) == before


START = """
out = "tuned"
[arguments]
config = "movielens"
trainer_args = ["--evaluate.every_steps", "20"]
[space]
model.embedding_dim = [8, 16]
optimizer.dense.learning_rate = { log = [0.001, 0.1] }
[start]
model.embedding_dim = 8
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "embedding_dim = 8\n",
            "embedding_dims = 8\n",
            "start.model.embedding_dims is 8, but the space has no such key",
        ),
        (
            "embedding_dim = 8\n",
            "embedding_dim = 9\n",
            "start.model.embedding_dim is 9, which space.model.embedding_dim",
        ),
        (
            "[start]",
            "[start]\noptimizer.dense.learning_rate = 0.2",
            "start.optimizer.dense.learning_rate is 0.2, which",
        ),
        (
            "[start]",
            "[start]\noptimizer.dense.learning_rate = 'a'",
            "start.optimizer.dense.learning_rate is 'a', which",
        ),
    ],
)
def test_a_first_trial_has_values_of_the_space(old, new, message, folder, capsys):
    Path("s.toml").write_text(START)
    assert read_sweep("s.toml").start == {"model.embedding_dim": 8}
    Path("s.toml").write_text(START.replace(old, new))
    with pytest.raises(SystemExit) as end:
        main(["sweep", "run", "s.toml"])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_the_file_is_one_to_change_and_run(folder):
    file = write_sweep(parsed("c.toml", "--out", "tuned"), print)
    assert write_sweep(parsed("c.toml", "--out", "tuned"), print) == file  # the same again goes on
    assert tomllib.loads(Path(file).read_text())["arguments"]["config"] == "c.toml"
