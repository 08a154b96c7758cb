"""Planned and measured times of steps, as docs/explanation/step_times.md has them, and the choice of plans."""

import itertools
import json
import statistics

import numpy as np
import pytest

from benchmarks.planned_times import APART, CHOSEN, RAW, choose, draw_plan, slowest_rank, spearman

MEASURED = json.loads(RAW.read_text())
CLOSE, AGREED, LEAST_PLANS, LEAST_STEPS = 0.3, 0.9, 12, 50


def pairs_of(model):
    return [
        (slowest_rank(plan["predicted"]), max(statistics.median(rank) for rank in plan["measured"]))
        for plan in model["plans"]
    ]


def test_plans_of_two_models_are_compared_that_differ_by_more_than_a_tenth():
    assert len(MEASURED["models"]) == 2
    assert sum(len(model["plans"]) for model in MEASURED["models"]) >= LEAST_PLANS
    for model in MEASURED["models"]:
        planned = [planned for planned, _ in pairs_of(model)]
        assert min(slower / faster for faster, slower in itertools.pairwise(planned)) >= APART
        assert all(len(rank) >= LEAST_STEPS for plan in model["plans"] for rank in plan["measured"])


def test_planned_times_agree_with_measured_ones():
    everything = [pair for model in MEASURED["models"] for pair in pairs_of(model)]
    assert spearman(everything) >= AGREED
    assert max(abs(planned / measured - 1) for planned, measured in everything) <= CLOSE
    for model in MEASURED["models"]:
        assert spearman(pairs_of(model)) >= AGREED


@pytest.mark.parametrize("seed", range(5))
def test_chosen_plans_are_apart(seed):
    times = np.random.default_rng(seed).lognormal(4, 0.4, 200)
    chosen = times[choose(times.tolist())]
    assert len(chosen) in (CHOSEN - 1, CHOSEN)
    assert chosen[0] == times.min()
    assert (chosen[1:] / chosen[:-1]).min() >= APART


def test_the_same_seed_draws_the_same_plan():
    assert draw_plan(20, 7) == draw_plan(20, 7)
    assert len({draw_plan(20, seed) for seed in range(50)}) == 50
