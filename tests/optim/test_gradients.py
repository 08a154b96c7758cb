"""Gradients that ranks average, compared with their means in float64."""

import averaged_gradients
import pytest
import torch
from averaged_gradients import RANKS, SHAPES, STEPS, gradient
from forked import run_forked


@pytest.mark.parametrize("step", range(STEPS))
def test_all_ranks_get_the_mean_and_unused_weights_get_none(averaged, step):
    for rank in range(RANKS):
        found = torch.load(averaged / f"{rank}-{step}.pt")
        for name, shape in SHAPES.items():
            given = [one for one in (gradient(name, of_rank, step) for of_rank in range(RANKS)) if one is not None]
            if not given:
                assert found[name] is None
                continue
            assert found[name].shape == shape
            expected = torch.stack(given).double().sum(0) / RANKS
            torch.testing.assert_close(found[name].double(), expected, rtol=1e-6, atol=1e-7, msg=name)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("averaged")
    run_forked(averaged_gradients.average, folder, folder=folder)
    return folder
