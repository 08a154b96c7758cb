"""Every built-in model, as its ready-made configuration has it: on any number of ranks, and resumed.

By default each model trains on one rank and on two, or one on four, and two models are resumed; `--all` takes all of
them.
"""

from itertools import product

import numpy as np
import pytest
import torch
from jobs import launch_rounds, losses, saved_tensors
from ready_made import NAMES, ready_made, sampled, write_ratings

pytestmark = pytest.mark.more("test_sharding.py compares ranks; each model's own test has its formula")

STEPS, HALF = 12, 6
SEVERAL = (2, 4)
# Without Adam, whose steps do not depend on the size of a gradient, not even of one that is what rounding leaves of 0,
# as where batch normalization takes the scale of the only dense feature away.
RATES = {"optimizer__sparse__learning_rate": 0.1, "optimizer__dense": {"name": "sgd", "learning_rate": 0.1}}
WITHOUT_DENSE = [
    *("dlrm", "dlrm_dcn", "wide_deep", "deepfm", "xdeepfm", "autoint", "masknet", "finalmlp", "wukong"),
    *("mmoe", "ple", "esmm", "dbmtl", "pepnet"),
]

OWN = {
    "dlrm": {"model__over_embeddings": True},
    "deepfm": {"model__first_order_columns": 4},
    "wide_deep": {"model__first_order_columns": 1},
    "dlrm_hstu": {"model__normalization": "none"},  # it has norms of its own
}


def settings(data, name, steps=STEPS, evaluate=0, **changes):
    changes = {"model__dropout": 0.1, "model__normalization": "batch"} | OWN.get(name, {}) | changes
    changes |= {"data__test": []} if evaluate else {"data__validation": [], "data__test": []}
    return ready_made(name, data, train__steps=steps, evaluate__every_steps=evaluate, **RATES, **changes)


def combinations(whole):
    """Returns models with the numbers of ranks that they train on beside one."""
    return [*product(NAMES, SEVERAL)] if whole else [(NAMES[0], 4), *((name, 2) for name in NAMES[1:])]


MATRIX = "name, ranks", combinations


@pytest.fixture(scope="module")
def resumed(request, matrix):
    """Models to resume, with numbers of ranks."""
    return sampled([*dict(matrix).items()], 2, request.config.getoption("all"))


@pytest.fixture(scope="module")
def runs(matrix, resumed, tmp_path_factory):
    """Runs of every model on one rank, on several with evaluations, without dense features, and in halves."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_ratings(folder)
    jobs = {ranks: [] for ranks in (1, *SEVERAL)}

    def add(name, ranks, suffix, *steps, **changes):
        jobs[ranks].append({"config": settings(data, name, *steps, **changes), "out": str(folder / f"{name}-{suffix}")})

    for name in NAMES:
        add(name, 1, "1")
    for name, ranks in matrix:
        add(name, ranks, ranks, evaluate=HALF - 1)
    for name in WITHOUT_DENSE:
        gates = {"model__gates": {"first": ["gender"]}} if name == "finalmlp" else {}  # whose preset names dense ones
        add(name, 2, "bare", 1, data__dense={}, **gates)
    for name, ranks in resumed:
        for steps in (HALF, STEPS):
            add(name, ranks, "halves", steps)
    launch_rounds([*jobs.items()], folder)
    return folder


def test_losses_fall_and_do_not_depend_on_the_number_of_ranks(runs, name, ranks):
    alone = losses(runs / f"{name}-1")
    assert np.mean(alone[-3:]) < np.mean(alone[:3])
    np.testing.assert_allclose(losses(runs / f"{name}-{ranks}"), alone, rtol=1e-5)


def test_a_resume_is_bit_for_bit(runs, resumed):
    for name, ranks in resumed:
        whole, halves = (saved_tensors(runs / f"{name}-{kind}", STEPS) for kind in (ranks, "halves"))
        assert whole.keys() == halves.keys()
        assert [part for part in whole if not torch.equal(whole[part], halves[part])] == [], name


@pytest.mark.parametrize("name", WITHOUT_DENSE)
def test_dense_features_are_not_needed(runs, name):
    assert len(losses(runs / f"{name}-bare")) == 1
