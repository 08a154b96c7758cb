"""Every built-in model over pooled embeddings: on any number of ranks, resumed, and without dense features."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from jobs import config, launch_rounds, losses, saved_tensors, write_rows

STEPS, HALF = 12, 6
EXPERTS = {"shared": 2, "layers": [8, 6]}
KEYS = {
    "wide_deep": {"over_layers": [8]},
    "deepfm": {"over_layers": [8]},
    "mmoe": {"tower_layers": [4], "experts": EXPERTS},
    "ple": {"tower_layers": [4], "experts": EXPERTS | {"per_task": 1, "levels": 2}},
    "esmm": {"tower_layers": [8]},
    "dbmtl": {"over_layers": [8], "tower_layers": [6], "dependencies": {"buy": ["label"]}},
}
ESMM = {
    "ctr": {"label": "label", "output": "log_probability"},
    "ctcvr": {"label": "buy", "output": "log_probability"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows with a second label, `buy`, for half of those of the first."""
    folder = tmp_path_factory.mktemp("models")
    table = pq.read_table(write_rows(folder / "plain", [320]) / "part-00.parquet")
    buy = np.array(table["label"]) * np.random.default_rng(0).integers(0, 2, len(table))
    (folder / "rows").mkdir()
    pq.write_table(table.append_column("buy", pa.array(buy)), folder / "rows/part.parquet", row_group_size=64)
    return folder / "rows"


def settings(data, name, steps=STEPS, **changes):
    tree = config(
        data,
        data__labels=["label", "buy"],
        model={"name": name, "embedding_dim": 8} | KEYS[name],
        optimizer__sparse={"name": "rowwise_adagrad", "learning_rate": 0.1},
        optimizer__dense={"name": "adam", "learning_rate": 0.01},
        train__steps=steps,
        **changes,
    )
    return tree | ({"tasks": ESMM} if name == "esmm" else {})


def resumed_names(config):
    return [*KEYS] if config.getoption("all") else random.Random(0).sample([*KEYS], 2)


def pytest_generate_tests(metafunc):
    if "resumed" in metafunc.fixturenames:
        metafunc.parametrize("resumed", resumed_names(metafunc.config))


@pytest.fixture(scope="module")
def runs(request, data, tmp_path_factory):
    """Runs of every model on 1, 2 and 4 ranks, on 2 without dense features, and on 2 in halves."""
    folder = tmp_path_factory.mktemp("runs")
    rounds = [
        (ranks, [{"config": settings(data, name), "out": str(folder / f"{name}-{ranks}")} for name in KEYS])
        for ranks in (1, 2, 4)
    ]
    on_two = rounds[1][1]
    for name in KEYS:
        bare = settings(data, name, steps=1, data__dense={})
        on_two.append({"config": bare, "out": str(folder / f"{name}-bare")})
    for name in resumed_names(request.config):
        for steps in (HALF, STEPS):
            on_two.append({"config": settings(data, name, steps), "out": str(folder / f"{name}-halves")})
    launch_rounds(rounds, folder)
    return folder


@pytest.mark.parametrize("name", KEYS)
def test_losses_fall_and_do_not_depend_on_the_number_of_ranks(runs, name):
    alone = losses(runs / f"{name}-1")
    assert np.mean(alone[-3:]) < np.mean(alone[:3])
    for ranks in (2, 4):
        np.testing.assert_allclose(losses(runs / f"{name}-{ranks}"), alone, rtol=1e-5)


def test_a_resume_is_bit_for_bit(runs, resumed):
    whole, halves = (saved_tensors(runs / f"{resumed}-{kind}", STEPS) for kind in ("2", "halves"))
    assert whole.keys() == halves.keys()
    assert [name for name in whole if not torch.equal(whole[name], halves[name])] == []


@pytest.mark.parametrize("name", KEYS)
def test_dense_features_are_not_needed(runs, name):
    assert len(losses(runs / f"{name}-bare")) == 1
