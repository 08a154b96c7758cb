"""Sweep files: spaces, directions, the job of a trial, and one line for whatever is wrong with a file."""

import re
import sys
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from torchx.cli.main import main

from torchx_recsys.sweeps.file import read_sweep

FILE = """
out = "runs/sweep"
trials = 20

[arguments]
config = "movielens"
nproc = 2
trainer_args = ["--evaluate.every_steps", "20"]

[space]
optimizer.dense.learning_rate = { log = [1e-4, 1e-1] }
data.global_batch_size = { log = [256, 4096] }
model.embedding_dim = { range = [8, 32], step = 8 }
model.over_layers = [[64], [64, 32]]
optimizer.sparse.name = ["adam", "rowwise_adagrad"]
"""


@pytest.fixture
def read(tmp_path):
    """Reads a sweep file of a text, in which a part is replaced."""

    def read(old="", new=""):
        assert old in FILE
        (tmp_path / "s.toml").write_text(FILE.replace(old, new, 1))
        return read_sweep(str(tmp_path / "s.toml"))

    return read


def test_a_space_is_of_keys_of_the_configuration(read):
    sweep = read()
    assert {key: dimension.distribution for key, dimension in sweep.dimensions.items()} == {
        "optimizer.dense.learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
        "data.global_batch_size": IntDistribution(256, 4096, log=True),
        "model.embedding_dim": IntDistribution(8, 32, step=8),
        "model.over_layers": CategoricalDistribution(["64", "64 32"]),
        "optimizer.sparse.name": CategoricalDistribution(["adam", "rowwise_adagrad"]),
    }
    values = {"model.over_layers": "64 32", "optimizer.dense.learning_rate": 0.01}
    assert sweep.job(7, values).words == [
        *("--config=movielens", "--out=runs/sweep/trials/7", "--nproc=2", "--", "--evaluate.every_steps", "20"),
        *("--model.over_layers", "64", "32", "--optimizer.dense.learning_rate", "0.01"),
    ]
    config = sweep.configured(values)
    assert (config.model.over_layers, config.evaluate.every_steps) == ([64, 32], 20)


def test_a_key_may_need_a_value_that_the_space_has(tmp_path):
    text, name = FILE.partition("\noptimizer.sparse.name")[0], '"--optimizer.sparse.name", "rowwise_adagrad"'
    text = text.replace('["--', f'[{name}, "--optimizer.sparse.weight_decay_mode", "l2", "--', 1)
    (tmp_path / "s.toml").write_text(f"{text}\noptimizer.sparse.weight_decay = {{ log = [1e-6, 1e-3] }}\n")
    values = {"optimizer.sparse.weight_decay": 1e-4}
    assert read_sweep(str(tmp_path / "s.toml")).configured(values).optimizer.sparse.weight_decay == 1e-4


@pytest.mark.parametrize(("aim", "higher"), [("auc", True), ("log_loss", False), ("normalized_entropy", False)])
def test_the_direction_of_an_aim_is_known(read, aim, higher):
    assert read("trials = 20", f'aim = "{aim}"').higher == higher


def test_a_grid_has_no_more_trials_than_combinations(read):
    grid = 'sampler = "grid"\n[space]\nmodel.over_layers = [[64], [64, 32]]\nmodel.embedding_dim = [8, 16, 32]\n'
    text = FILE[: FILE.index("[arguments]")].replace("\n[", "")
    arguments = FILE[FILE.index("[arguments]") : FILE.index("[space]")]
    sweep = read(FILE, text + grid.replace("[space]", f"{arguments}[space]"))
    assert sweep.trials == 6


WRONG = [
    ('out = "runs/sweep"', "", "'out' is missing"),
    ('"runs/sweep"', '"s3://bucket/sweep"', "out is 's3://bucket/sweep': Optuna's journal needs a directory"),
    ("trials = 20", "trails = 20", "unknown key 'trails'; did you mean 'trials'?"),
    ("trials = 20", "trials = 0", "trials is 0: input should be greater than or equal to 1"),
    ("trials = 20", 'sampler = "tpe2"', "sampler is 'tpe2'"),
    ("trials = 20", 'sampler = "grid"', "space.optimizer.dense.learning_rate: sampler is 'grid', which takes lists"),
    ("trials = 20", 'aim = "acu"', "aim is 'acu'; allowed: auc, normalized_entropy, log_loss"),
    ("trials = 20", 'aim = "calibration"', "aim is 'calibration'; allowed: auc"),
    (
        "trials = 20",
        'component = "dlrm.multi"',
        "component: unknown component 'dlrm.multi'; did you mean 'dlrm.mul",
    ),
    ("trials = 20", 'component = "data.movielens"', "component: must take `config`, `out` and overrides"),
    ('config = "movielens"', "", "arguments.config is missing; name the configuration whose keys the space has"),
    ('config = "movielens"', 'config = "nosuch"', "configuration 'nosuch' ("),
    ("nproc = 2", 'out = "a"', "arguments.out: each trial has a run directory of its own"),
    ("nproc = 2", "nprocs = 2", "arguments: unknown argument 'nprocs'; did you mean 'nproc'?"),
    ('["--evaluate.every_steps", "20"]', '"--a"', "arguments.trainer_args is '--a': must be a list"),
    ("nproc = 2", "nproc = 0", "--nproc 0: must be a number of processes from 1 up"),
    ('"20"]', '"0"]', "pruner is 'halving', but evaluate.every_steps is 0; set it, or pruner to 'none'"),
    ("dense.learning_rate", "dense.lerning_rate", "unknown flag --optimizer.dense.lerning_rate; did you mean"),
    ("[1e-4, 1e-1]", "[1e-1, 1e-4]", "space.optimizer.dense.learning_rate is {'log': [0.1, 0.0001]}"),
    ("[1e-4, 1e-1]", "[-1.0, 1.0]", "space.optimizer.dense.learning_rate is {'log': [-1.0, 1.0]}"),
    (
        "{ log = [1e-4, 1e-1] }",
        "{ range = [-1.0, 1.0] }",
        "--optimizer.dense.learning_rate is -1.0: input should be gre",
    ),
    ("{ log = [1e-4, 1e-1] }", "0.1", "space.optimizer.dense.learning_rate is 0.1: must be a list of different values"),
    ("{ log = [1e-4, 1e-1] }", "{ logs = [1, 2] }", "unknown flag --optimizer.dense.learning_rate.logs; did you mean"),
    ('["adam", "rowwise_adagrad"]', '["adam"]', "space.optimizer.sparse.name is ['adam']: must be a list of different"),
    ('["adam", "rowwise_adagrad"]', '["adam", "adma"]', "optimizer.sparse.name is 'adma'"),
    ("log = [256, 4096]", "log = [0, 4096]", "space.data.global_batch_size is {'log': [0, 4096]}"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_wrong_file_is_one_line_and_nothing_is_submitted(tmp_path, monkeypatch, capsys, old, new, message):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert old in FILE
    Path("s.toml").write_text(FILE.replace(old, new, 1))
    with pytest.raises(SystemExit) as end:
        main(["sweep", "run", "s.toml"])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith("torchx sweep: error: sweep 's.toml'")
    assert message in line
    assert [*tmp_path.iterdir()] == [tmp_path / "s.toml"]


def test_a_dry_run_shows_the_request_of_a_first_trial(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(FILE)
    main(["sweep", "run", "s.toml", "-s", "slurm", "--dryrun"])
    shown = capsys.readouterr().out
    assert re.search(
        r"-m trainer train movielens --out runs/sweep/trials/0 .*--optimizer.dense.learning_rate 0.0001", shown
    )
    assert [*tmp_path.iterdir()] == [tmp_path / "s.toml"]


def test_a_missing_optuna_is_one_line(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("torchx_recsys.sweeps", "optuna"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit) as end:
        main(["sweep", "status", "s.toml"])
    assert end.value.code == 2
    assert capsys.readouterr().err == "torchx sweep: error: optuna is missing: pip install 'torchx-recsys[sweep]'\n"
