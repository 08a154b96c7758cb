"""Every built-in model, as its ready-made configuration has it: on any number of ranks, and resumed.

By default two models are resumed; `--all` resumes all.
"""

import numpy as np
import pytest
import torch
from jobs import launch_rounds, losses, saved_tensors
from ready_made import NAMES, ready_made, sampled, write_ratings

STEPS, HALF = 12, 6
RATES = {"optimizer__sparse__learning_rate": 0.1, "optimizer__dense__learning_rate": 0.01}
WITHOUT_DENSE = ["wide_deep", "deepfm", "mmoe", "ple", "esmm", "dbmtl"]


def settings(data, name, steps=STEPS, evaluate=0, **changes):
    changes |= {"data__test": []} if evaluate else {"data__validation": [], "data__test": []}
    return ready_made(name, data, train__steps=steps, evaluate__every_steps=evaluate, **RATES, **changes)


def resumed_names(config):
    return sampled(config, NAMES, 2)


def pytest_generate_tests(metafunc):
    if "resumed" in metafunc.fixturenames:
        metafunc.parametrize("resumed", resumed_names(metafunc.config))


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Runs of every model on 1, 2 and 4 ranks, evaluated on 2; there also without dense features, and in halves."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_ratings(folder)
    rounds = [
        (
            ranks,
            [{"config": settings(data, name, **evaluated), "out": str(folder / f"{name}-{ranks}")} for name in NAMES],
        )
        for ranks, evaluated in ((1, {}), (2, {"evaluate": HALF - 1}), (4, {}))
    ]
    on_two = rounds[1][1]
    for name in WITHOUT_DENSE:
        bare = settings(data, name, steps=1, data__dense={})
        on_two.append({"config": bare, "out": str(folder / f"{name}-bare")})
    for name in resumed_names(request.config):
        for steps in (HALF, STEPS):
            on_two.append({"config": settings(data, name, steps), "out": str(folder / f"{name}-halves")})
    launch_rounds(rounds, folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_losses_fall_and_do_not_depend_on_the_number_of_ranks(runs, name):
    alone = losses(runs / f"{name}-1")
    assert np.mean(alone[-3:]) < np.mean(alone[:3])
    for ranks in (2, 4):
        np.testing.assert_allclose(losses(runs / f"{name}-{ranks}"), alone, rtol=1e-5)


def test_a_resume_is_bit_for_bit(runs, resumed):
    whole, halves = (saved_tensors(runs / f"{resumed}-{kind}", STEPS) for kind in ("2", "halves"))
    assert whole.keys() == halves.keys()
    assert [name for name in whole if not torch.equal(whole[name], halves[name])] == []


@pytest.mark.parametrize("name", WITHOUT_DENSE)
def test_dense_features_are_not_needed(runs, name):
    assert len(losses(runs / f"{name}-bare")) == 1
