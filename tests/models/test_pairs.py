"""Built-in models give the loss jrc a logit for each of two labels, beside other tasks; by default two models do."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from jobs import launch_rounds, losses
from ready_made import NAMES, ready_made, sampled, write_ratings
from test_pooled_formulas import WIDTH, inputs

from trainer.models.deepfm import deepfm
from trainer.models.pooled import columns_that_share

NAMES = [name for name in NAMES if name not in ("esmm", "two_tower")]  # whose predictions are no logits
MATRIX = "name", lambda whole: sampled(NAMES, 2, whole)
TASKS = {
    "loved": {"label": "loved"},
    "liked": {"label": "label", "loss": "jrc", "group": "user_id", "alpha": 0.7},
    "not.loved": {"label": "loved", "loss": "focal"},
}
CHANGES = {
    "tasks": TASKS,
    "data__labels": ["label", "loved"],
    "data__groups": ["user_id"],
    "data__test": [],
    "optimizer__sparse__learning_rate": 0.1,
    "optimizer__dense__learning_rate": 0.01,
    "train__steps": 30,
    "evaluate__every_steps": 30,
}


@pytest.fixture(scope="module")
def runs(matrix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    data = write_ratings(folder)

    def job(name, ranks):
        depends = {"model__dependencies": {"loved": ["liked"]}} if name == "dbmtl" else {}
        tree = ready_made(name, data, **CHANGES, **depends, data__validation=[str(data / "train")])
        return {"config": tree, "out": str(folder / f"{name}-{ranks}")}

    launch_rounds([(ranks, [job(name, ranks) for name in matrix]) for ranks in (1, 2)], folder)
    return folder


@pytest.mark.more("its loss is compared in float64")
@pytest.mark.few(1, "one stands for all")
def test_a_built_in_model_learns_with_jrc(runs, name):
    np.testing.assert_allclose(losses(runs / f"{name}-2")[:10], losses(runs / f"{name}-1")[:10], rtol=1e-5)
    found = json.loads((runs / f"{name}-1/evaluations.jsonl").read_text().splitlines()[-1])
    assert min(found[f"auc/{task}"] for task in TASKS) > 0.65, found


def test_a_term_that_predictions_share_speaks_for_label_1():
    """Added to both logits of a pair, it would cancel out in the probability."""
    made = replace(inputs("deepfm"), pairs=["keep.it"])
    built, x = deepfm(made).network, torch.randn(5, WIDTH)
    with torch.no_grad():
        added = built(x) - built.wide_and_deep(x)
        torch.testing.assert_close(added, built.second(x) * torch.tensor([1.0, 0.0, 1.0, 1.0]))


def test_of_classes_it_speaks_for_the_last():
    made = replace(inputs("deepfm"), classes={"keep.it": 4})
    assert columns_that_share(made).tolist() == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
