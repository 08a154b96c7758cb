"""The loss scale follows torch's rule, and training in float16 that in float32."""

import tomllib
from itertools import cycle, islice

import numpy as np
import pytest
import torch
from jobs import launch, losses

from trainer.config.root import READY_MADE
from trainer.config.train import TrainConfig
from trainer.training.loss_scale import LossScale, start_state

MOVIELENS_STEPS = 500


@pytest.mark.parametrize("overflows", [[False], [True, False, False, False, False], [False, False, False, True]])
def test_the_scale_is_that_of_torch_s_grad_scaler(overflows):
    rule = {"initial": 2.0**40, "growth_factor": 2.5, "backoff_factor": 0.3, "growth_interval": 3}
    config = TrainConfig.model_validate({"loss_scale": rule})
    state = start_state(config, None)
    ours = LossScale(config, state)
    theirs = torch.amp.GradScaler("cpu", rule["initial"], rule["growth_factor"], rule["backoff_factor"], 3)
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight])
    for overflow in islice(cycle(overflows), 40):
        optimizer.zero_grad()
        theirs.scale(weight * (torch.inf if overflow else 0.0)).backward()
        theirs.step(optimizer)
        theirs.update()
        ours.update(finite=not overflow)
        assert state.loss_scale == pytest.approx(theirs.get_scale(), rel=1e-5)


def test_an_overflow_at_a_scale_of_1_leaves_it_there():
    config = TrainConfig.model_validate({"loss_scale": {"initial": 1.5}})
    state = start_state(config, None)
    scale = LossScale(config, state)
    for _ in range(3):
        scale.update(finite=False)
        assert (state.loss_scale, scale.is_least) == (1.0, True)


@pytest.fixture(scope="module")
def movielens_losses(tmp_path_factory):
    """The losses of MovieLens, by precision."""
    from torchx_recsys.apps.datasets.movielens import movielens  # pip has to download it

    folder = tmp_path_factory.mktemp("movielens")
    movielens(str(folder / "data"))
    tree = tomllib.loads((READY_MADE / "movielens.toml").read_text())
    tree["data"] |= {"train": [str(folder / "data/train")], "validation": [], "test": []}
    tree["train"] = {"steps": MOVIELENS_STEPS}
    tree["report"] = {"interval_steps": 1, "tensorboard": False}
    precisions = ("fp32", "fp16")
    jobs = [
        {"config": tree | {"train": tree["train"] | {"precision": precision}}, "out": str(folder / precision)}
        for precision in precisions
    ]
    launch(jobs, 2, folder)
    return {precision: losses(folder / precision) for precision in precisions}


@pytest.mark.sample(0)
def test_float16_learns_movielens_as_float32(movielens_losses):
    exact, rounded = movielens_losses["fp32"], movielens_losses["fp16"]
    assert len(exact) == MOVIELENS_STEPS
    assert rounded != exact
    assert np.mean(exact[-20:]) < 0.9 * np.mean(exact[:20])
    np.testing.assert_allclose(rounded, exact, rtol=0.01)
