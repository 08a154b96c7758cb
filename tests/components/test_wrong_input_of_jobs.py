"""Wrong input of a job on this machine: `torchx run` says it once, among twelve lines at most, and ends with 2.

By default a sample, another one for one rank and for three; `--all` takes every component's.
"""

import random

import pytest
from command import run_torchx, write_config
from jobs import config

from trainer.__main__ import main as trainer

RUN = ("run", "-s", "local_cwd")
MOST_LINES = 12
SAMPLE = 3
TRAIN = "dlrm.multi_node --config config.toml --out out"
ON_RANKS = [
    (f"{TRAIN} -- --train.stepz 3", "--train.stepz"),
    (f"{TRAIN} -- --train.steps ten", "--train.steps"),
    (f"{TRAIN} -- --train.steps 0", "train.steps is 0"),
    (f"{TRAIN} -- --data.train nowhere.parquet", "nowhere.parquet"),
    (f"{TRAIN} -- --data.global-batch-size 7", "data.global_batch_size is 7"),
    (f"{TRAIN} -- --model.name custom:nothing", "custom:nothing"),
    (f"{TRAIN} -- --optimizer.sparse.name adamm", "adamm"),
    (f"{TRAIN} -- --optimizer.dense.schedule.decay cosinus", "cosinus"),
    (f"{TRAIN} -- --planner.hardware h1000", "h1000"),
    (f"{TRAIN} -- --planner.plan nowhere.json", "nowhere.json"),
    (f"{TRAIN} -- --planner.sharding-types diagonal", "diagonal"),
    (f"{TRAIN} -- --model.dense-layers 0", "--model.dense_layers.0"),
    (f"{TRAIN} -- --evaluate.metrics aux", "aux"),
    (f"{TRAIN} -- --finetune.checkpoint nowhere", "nowhere"),
    (f"{TRAIN} -- --data.shuffle-window-rows 0", "shuffle"),
    ("dlrm.multi_node --config column.toml --out out", "nothing"),
    ("dlrm.multi_node --config nowhere.toml --out out", "nowhere.toml"),
    ("dlrm.multi_node --config config.toml --out run --resume none", "run"),
    ("dlrm.data_parallel --config broken.toml --out out", "broken.toml"),
    ("dlrm.evaluate --config run/config.toml --out nowhere", "nowhere"),
    ("dlrm.evaluate --config run/config.toml --out run --split nothing", "nothing"),
    ("dlrm.predict --config run/config.toml --out nowhere --source rows --to predicted", "nowhere"),
    ("dlrm.predict --config run/config.toml --out run --source missing --to predicted", "missing"),
    ("tools.embed --config run/config.toml --out run --table nothing --to vectors", "nothing"),
    ("tools.calibrate --out host.toml -- --repeats 0", "--repeats is 0"),
]
ALONE = [
    ("dlrm.single_node --config config.toml --out out -- --train.stepz 3", "--train.stepz"),
    ("data.movielens --out out --wheel nowhere.whl", "nowhere.whl"),
    ("data.criteo --source nowhere --out out", "nowhere"),
    ("data.synthetic --out out --rows 0", "--rows"),
    ("data.vocabulary --source rows --columns nothing --out out", "nothing"),
    ("data.check --config nowhere.toml", "nowhere.toml"),
    ("data.check --source nowhere", "nowhere"),
    ("tools.tensorboard --logdir nowhere", "nowhere"),
    ("tools.plan --config config.toml --on h1000:2", "h1000"),
    ("tools.plan --config config.toml --nproc 0", "--world-size is 0"),
    ("tools.schedule --config nowhere.toml", "nowhere.toml"),
    ("tools.checkpoints --out nowhere", "nowhere"),
    ("tools.export --config run/config.toml --out nowhere --to exported", "nowhere"),
    ("tools.export --config run/config.toml --out run --to exported --split nothing", "nothing"),
    ("tools.serve --directory nowhere", "nowhere"),
    ("tools.verify_resume --config config.toml --steps 0", "--steps"),
    ("tools.bench --out out nothing", "nothing"),
]
CASES = [(case, ranks) for case in ON_RANKS for ranks in (1, 3)] + [(case, 0) for case in ALONE]


def cells(whole: bool) -> list:
    return CASES if whole else random.Random(26).sample(CASES, SAMPLE)


MATRIX = ("case, ranks", cells)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "rows").symlink_to(rows)
    held_out = {"data__validation": [str(rows)], "data__test": [str(rows)]}
    write_config(folder / "config.toml", config(rows, train__steps=2, data__global_batch_size=72, **held_out))
    write_config(folder / "column.toml", config(rows, data__global_batch_size=72, data__dense__nothing={}))
    (folder / "broken.toml").write_text("[data\n")
    assert trainer(["train", str(folder / "config.toml"), "--out", str(folder / "run")]) == 0
    return folder


def test_it_is_said_once(folder, path, case, ranks):
    (words, expected) = case
    before, dashes, after = words.partition(" -- ")
    shape = f"-j 1x{ranks}".split() if ranks else []
    words = [*RUN, *before.split(), *shape, *(["--", *after.split()] if dashes else [])]
    done = run_torchx(*words, cwd=folder, HOME=str(folder), COLUMNS="200", PATH=path)
    lines = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 2, done.stderr
    assert len(lines) <= MOST_LINES, done.stderr
    (said,) = [line for line in lines if "error: " in line]
    assert expected in said
    assert not any("Traceback" in line for line in lines)
