"""Metrics do not depend on the number of ranks, on which of them has a sample, or on the order."""

import json

import numpy as np
import pytest
import reference_metrics
from evaluated import on_all_ranks
from forked import run_forked

from trainer.metrics.registry import METRICS


def tasks():
    """Every metric, each with a task that it suits."""
    random = np.random.default_rng(4)
    names = [name.replace("@threshold", "@0.3").replace("@k", "@3") for name in METRICS]
    classes, values = ["accuracy", "accuracy@3", "cross_entropy"], ["mae", "mse", "rmse", "r2", "xauc", "grouped_xauc"]
    rest = [name for name in names if name not in classes + values]
    columns = {
        "predictions": np.round(random.normal(size=900), 1).tolist(),
        "labels": random.integers(0, 2, 900).astype(float).tolist(),
        "weights": random.choice([0.0, 0.7, 1.9], 900).tolist(),
        "groups": random.integers(0, 120, 900).tolist(),
    }
    scores = {"predictions": random.normal(size=(900, 3)).tolist()}
    half = {"evaluate": {"group_sample": 0.5}}
    return [
        {"names": rest, "settings": {}, "columns": columns},
        {"names": ["gauc", "mrr"], "settings": half, "columns": columns},
        {"names": [*values, "ndcg@3", "custom:MedianError"], "settings": {"output": "value"}, "columns": columns},
        {"names": [*classes, "auc"], "settings": {"loss": "softmax"}, "columns": columns | scores},
        {"names": ["gauc", "mrr"], "settings": {}, "columns": {name: rows[:1] for name, rows in columns.items()}},
        {"names": reference_metrics.NAMES, "settings": {}, "columns": ordered(3000, 0)},
        {"names": reference_metrics.NAMES, "settings": {}, "columns": ordered(20_000, 80_000)},
    ]


def ordered(few, different):
    """Samples of ten different predictions that share two bins, and others, more than are counted in all."""
    random, samples = np.random.default_rng(few), few + different
    predictions = [random.choice(random.normal(size=10) * 1e-5, few), random.normal(size=different)]
    return {
        "predictions": np.concatenate(predictions).tolist(),
        "labels": random.integers(0, 2, samples).astype(float).tolist(),
        "weights": random.choice([0.0, 0.7, 1.9], samples, p=[0.1, 0.5, 0.4]).tolist(),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run_forked(on_all_ranks, tasks(), folder / "out.json", folder=folder)
    return {ranks: json.loads((folder / f"out.json.{ranks}").read_text()) for ranks in (1, 2, 4)}


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_metric_is_the_same_on_any_number_of_ranks(found, ranks):
    for one, other in zip(found[1], found[ranks], strict=True):
        assert other == pytest.approx(one, rel=1e-12, abs=1e-15, nan_ok=True)
    assert {name.partition("@")[0] for task in found[1] for name in task} >= {
        name.partition("@")[0] for name in METRICS
    }


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_few_predictions_are_counted_on_any_number_of_ranks_and_more_are_bounded(found, ranks):
    """Of the many, no rank of four has too many by itself."""
    for task, result, exact in zip(tasks()[-2:], found[ranks][-2:], (True, False), strict=True):
        predictions, *rest = (np.array(values) for values in task["columns"].values())
        for name, value in reference_metrics.ordered_metrics(predictions, *rest).items():
            bound = result[f"{name}_error"]
            assert abs(result[name] - value) <= bound + 1e-12, name
            assert bound < 0.04, name
        assert (result["auc_error"] == result["auprc_error"] == 0) == exact


def test_a_sample_of_the_groups_is_not_all_of_them(found):
    whole, half, *_ = found[1]
    assert whole["gauc"] != half["gauc"]


def test_a_metric_of_ones_own_may_gather(found):
    columns = {name: np.array(values) for name, values in tasks()[2]["columns"].items()}
    errors = abs(columns["predictions"] - columns["labels"])[columns["weights"] > 0]
    assert found[4][2]["median_error"] == np.sort(errors)[(len(errors) - 1) // 2]  # torch's median is the lower one
