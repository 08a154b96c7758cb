"""A custom loss, metric and decay, named in the configuration of a training job."""

import itertools
import json

import numpy as np
import pytest
import torch
from command import write_config
from jobs import config, launch_rounds, losses, saved_tensors

from trainer.__main__ import main as trainer
from trainer.training.step import seed_step

STEPS = 4  # one epoch


@pytest.fixture
def train(rows, tmp_path):
    """Trains a configuration in this process and returns the run directory."""

    def train(name, **changes):
        file = write_config(tmp_path / f"{name}.toml", config(rows, train__steps=STEPS, **changes))
        assert trainer(["train", str(file), "--out", str(tmp_path / name)]) == 0
        return tmp_path / name

    return train


def test_a_custom_loss_is_what_a_custom_metric_measures(train, rows):
    """At a rate of zero, the mean loss of an epoch is the metric of the same samples."""
    still = {"name": "sgd", "learning_rate": 0.0}
    evaluated = {"data__validation": [str(rows)], "evaluate__metrics": ["custom:BrierScore", "log_loss"]}
    out = train("out", model__loss="custom:squared_error", optimizer={"sparse": still, "dense": still}, **evaluated)
    (evaluation,) = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    assert np.mean(losses(out)) == pytest.approx(evaluation["brier_score"], rel=1e-6)
    assert evaluation["brier_score"] < evaluation["log_loss"]


def test_a_custom_loss_is_learned(train):
    curve = losses(train("out", model__loss="custom:squared_error", optimizer__sparse__learning_rate=20.0))
    assert curve[-1] < curve[0]


def test_dropout_is_resumed_bit_for_bit_on_the_same_ranks(rows, tmp_path):
    changes = {"model": {"name": "custom:Dropped", "embedding_dim": 16}, "data__validation": [str(rows)]}
    changes |= {"evaluate__every_steps": 1, "train__micro_batches": 2}

    def jobs(ranks):
        lengths = {f"straight-{ranks}": [STEPS], f"resumed-{ranks}": [STEPS // 2, STEPS]}
        return [
            {"config": config(rows, **changes, train__steps=steps), "out": str(tmp_path / out)}
            for out in lengths
            for steps in lengths[out]
        ]

    launch_rounds([(ranks, jobs(ranks)) for ranks in (1, 2)], tmp_path)
    for ranks in (1, 2):
        straight, resumed = tmp_path / f"straight-{ranks}", tmp_path / f"resumed-{ranks}"
        assert losses(resumed) == losses(straight)
        expected, found = saved_tensors(straight, STEPS), saved_tensors(resumed, STEPS)
        assert all(found[name].equal(value) for name, value in expected.items())


def test_each_step_of_each_rank_draws_other_random_numbers():
    drawn = set()
    for seed, step, rank in itertools.product((0, 1), (1, 2, 2**40), (0, 1, 255)):
        seed_step(seed, step, rank, torch.device("cpu"))
        drawn.add(torch.rand(1).item())
    assert len(drawn) == 2 * 3 * 3


def test_a_custom_decay_sets_the_rates(train):
    whole = train("whole", optimizer__sparse__learning_rate=0.5, optimizer__dense__learning_rate=0.25)
    changes = {f"optimizer__{section}__schedule": {"decay": "custom:halved"} for section in ("sparse", "dense")}
    halved = train("halved", optimizer__sparse__learning_rate=1.0, optimizer__dense__learning_rate=0.5, **changes)
    assert losses(halved) == losses(whole)
    assert losses(halved)[-1] != losses(halved)[0]
