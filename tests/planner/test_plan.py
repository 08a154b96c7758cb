"""Plans fit by the predicted peak of every rank, and what fits with room to spare is found."""

import random
from functools import cache

import pytest
import torch
from jobs import config

from torchx_recsys.planner.hardware import GIB, Cluster
from torchx_recsys.planner.plan import find_plan, times_needed
from torchx_recsys.planner.search import NothingFits
from trainer.config.root import Config
from trainer.models.builder import build_model
from trainer.plan.dense_part import dense_part
from trainer.plan.make_plan import plan_for, problem_of

pytestmark = pytest.mark.slow

MATRIX = "seed", lambda whole: range(24) if whole else (2, 7, 11)
PLENTY, TRIES = 1000.0, 10
EXACTLY, ROOM = 1.0001, 1.1  # rounded up, and with a tenth to spare


def problem(seed, gib=PLENTY, host_gib=PLENTY, **changes):
    """Returns the problem of a random model on a random cluster: tables, batch and dense part weigh differently."""
    draw = random.Random(seed)
    tree = config(
        "nowhere",
        data__sparse={
            f"s{number}": {"rows": int(10 ** draw.uniform(2, 7.5)), "hotness": draw.choice([1.0, 3.0, 20.0])}
            for number in range(draw.randint(2, 10))
        },
        data__global_batch_size=draw.choice([2**12, 2**16, 2**18]),
        model__embedding_dim=draw.choice([16, 64, 128]),
        optimizer__sparse={"name": draw.choice(["sgd", "rowwise_adagrad", "adam"])},
        planner__memory_gib=gib,
        planner__host_memory_gib=host_gib,
        **changes,
    )
    hosts, per_host = draw.choice([(1, 1), (1, 2), (1, 4), (2, 4)])
    settings = Config.model_validate(tree)
    model = build_model(settings.data, settings.model, settings.predictions(), torch.device("meta"))
    return problem_of(model, settings, Cluster(None, hosts, per_host, draw.random() < 0.7))


def scarce(seed, times):
    """Returns a problem with some times the memory that a lean plan takes of its fullest rank."""
    gpu, host = times * leanest(seed) / GIB
    return problem(seed, max(gpu, 1e-3), max(host, 1e-3))


@cache
def leanest(seed):
    plenty = problem(seed, planner__slower_for_memory=10.0)
    least = plenty.peak(find_plan(plenty, TRIES)).total.max(axis=0)
    least[plenty.device] /= 1 - plenty.reserve
    return least


@pytest.mark.parametrize("times", [0.6, 0.9, EXACTLY])
def test_what_is_said_to_fit_does(seed, times):
    found = scarce(seed, times)
    try:
        plan = find_plan(found, TRIES)
    except NothingFits as error:
        refused = error
    else:
        peak = found.peak(plan)
        assert (peak.total <= found.usable).all()
        assert (peak.total <= found.there).all()
        return
    assert times < 1 or not refused.is_proven


def test_what_fits_with_room_to_spare_is_found(seed):
    found = scarce(seed, ROOM)
    assert (found.peak(find_plan(found, TRIES)).total <= found.usable).all()


def test_what_is_needed_is_as_little_as_a_plan_takes(seed):
    lacking = scarce(seed, 0.3)
    with pytest.raises(NothingFits) as error:
        find_plan(lacking, TRIES)
    assert error.value.is_proven
    times = times_needed(lacking)
    assert 1 < times < 1 / 0.3 + 0.01  # a plan is known that takes so much
    gpu, host = 0.98 * times * lacking.there / GIB
    with pytest.raises(NothingFits):
        find_plan(problem(seed, max(gpu, 1e-3), host), TRIES)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_dense_part_and_its_activations_are_refused_by_name(device):
    """A batch of a million samples: activations fit no rank, though the tables would."""
    tree = config("nowhere", data__global_batch_size=2**20, planner__memory_gib=1.2, planner__host_memory_gib=1.2)
    settings = Config.model_validate(tree | {"planner": tree["planner"] | {"reserve": 0.25}})
    model = build_model(settings.data, settings.model, settings.predictions(), torch.device("meta"))
    activations = dense_part(settings, 1).memory.activations / GIB
    with pytest.raises(ValueError, match="and a rank's memory has no room for tables") as error:
        plan_for(model, settings, Cluster(None, 1, 1, device == "cuda"))
    assert f"{activations:.3g} GiB for its activations" in str(error.value)
    assert "of 1.2 GiB it takes" in str(error.value)
    assert "307 MiB for planner.reserve; planner.memory_gib is 1.2" in str(error.value)
