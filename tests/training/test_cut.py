"""The cut between tables and dense part alone changes no bit of a run, and nor does a scale that is a power of two.

By default each plan has one of the optimizers; `--all` takes every pair.
"""

from itertools import cycle, product

import pytest
import torch
from jobs import config, launch, losses, saved_tensors, write_rows

pytestmark = pytest.mark.more("test_sharding.py compares plans")

PLANS = [
    "table_wise",
    "row_wise",
    "table_row_wise",
    "column_wise",
    "table_column_wise",
    "grid_shard",
    "data_parallel",
]
OPTIMIZERS = ["sgd", "adagrad", "rowwise_adagrad"]
STEPS = 6
CUTS = {
    "plain": {},
    "cut": {"optimizer__sparse__max_gradient": 1e30},  # which no gradient reaches
    "scaled": {"train__loss_scale": {"initial": 4096.0, "growth_interval": 2}},
}


def pairs(whole: bool) -> list[tuple[str, str]]:
    return list(product(PLANS, OPTIMIZERS) if whole else zip(PLANS, cycle(OPTIMIZERS)))


MATRIX = "plan, optimizer", pairs


@pytest.fixture(scope="module")
def runs(matrix, tmp_path_factory):
    """Every pair on two ranks, without a cut and with one."""
    folder = tmp_path_factory.mktemp("cut")
    data = write_rows(folder / "data", [130, 126])
    jobs = []
    for plan, optimizer in matrix:
        mode = {"planner__mode": "data_parallel"} if plan == "data_parallel" else {"planner__sharding_types": [plan]}
        for name, changes in CUTS.items():
            tree = config(
                data,
                train__steps=STEPS,
                optimizer__sparse={"name": optimizer, "learning_rate": 0.1},
                optimizer__dense={"name": "adamw", "learning_rate": 0.01},
                **mode,
                **changes,
            )
            jobs.append({"config": tree, "out": str(folder / f"{plan}-{optimizer}-{name}")})
    launch(jobs, 2, folder)
    return folder


@pytest.mark.parametrize("cut", ["cut", "scaled"])
def test_no_bit_differs(runs, plan, optimizer, cut):
    plain, other = (runs / f"{plan}-{optimizer}-{name}" for name in ("plain", cut))
    assert losses(plain) == losses(other)
    expected, found = saved_tensors(plain, STEPS), saved_tensors(other, STEPS)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
