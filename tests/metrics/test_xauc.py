"""Shares of pairs in the order of their labels, against a comparison of every pair, SciPy and TorchRec."""

import math

import numpy as np
import pytest
import torch
from evaluated import add, metrics_of_task
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import somersd
from torchrec.metrics.xauc import compute_error_sum, compute_weighted_num_pairs, compute_xauc

from trainer.core.distributed import process_group


def share(predictions, labels, weights):
    """The share of pairs in the order of their labels, ties as halves, by comparison of every pair."""
    right, pairs = 0.0, 0.0
    for one in range(len(labels)):
        for other in range(one):
            if labels[one] != labels[other]:
                product = (predictions[one] - predictions[other]) * (labels[one] - labels[other])
                weight = weights[one] * weights[other]
                right, pairs = right + weight * (0.5 + 0.5 * np.sign(product)), pairs + weight
    return right / pairs if pairs else math.nan


def seconds(count, seed=0, decimals=1):
    random = np.random.default_rng(seed)
    labels = np.round(random.normal(size=count), decimals)
    return {
        "predictions": np.round(labels + random.normal(size=count), decimals),
        "labels": labels,
        "weights": random.choice([0.0, 1.0, 2.5], count),
        "groups": random.integers(0, max(1, count // 6), count),
    }


@pytest.fixture(scope="module")
def computed():
    """A function that computes metrics, in one process group: to open one takes longer than any example."""
    with process_group() as context:
        yield lambda names, columns, output: add(metrics_of_task(names, output=output), columns).compute(context)


@settings(deadline=None)
@given(count=st.integers(0, 40), seed=st.integers(0, 1000), decimals=st.integers(0, 3))
def test_every_pair_is_compared(computed, count, seed, decimals):
    columns = seconds(count, seed, decimals)
    groups = columns["groups"]
    each = [
        share(*(columns[name][groups == group] for name in ("predictions", "labels", "weights")))
        for group in np.unique(groups)
    ]
    each = [value for value in each if not math.isnan(value)]
    expected = {
        "xauc": share(columns["predictions"], columns["labels"], columns["weights"]),
        "grouped_xauc": np.mean(each) if each else math.nan,
    }
    found = computed([*expected], columns, "value")
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_many_samples_against_somers_d(computed):
    columns = seconds(20_000)
    columns["weights"] = np.ones(20_000)
    d = somersd(columns["labels"], columns["predictions"]).statistic
    assert computed(["xauc"], columns, "value")["xauc"] == pytest.approx((1 + d) / 2, rel=1e-12)


def test_without_ties_it_is_that_of_torchrec(computed):
    columns = seconds(400, decimals=12)
    predictions, labels, weights = (torch.tensor(columns[name])[None] for name in ("predictions", "labels", "weights"))
    pairs = compute_weighted_num_pairs(weights)
    expected = compute_xauc(compute_error_sum(labels, predictions, weights), pairs).item()
    assert computed(["xauc"], columns, "value")["xauc"] == pytest.approx(
        expected, rel=1e-6
    )  # whose weights are summed apart


def test_labels_of_0_and_1_give_an_auc(computed):
    columns = seconds(300)
    columns["labels"] = (columns["labels"] > 0).astype(float)
    area = computed(["auc"], columns, "logit")["auc"]
    assert computed(["xauc"], columns, "value")["xauc"] == pytest.approx(area, rel=1e-12)


def test_a_count_is_in_the_order_of_its_logarithm(computed):
    columns = seconds(100) | {"labels": np.random.default_rng(1).poisson(2, 100).astype(float)}
    expected = share(columns["predictions"], columns["labels"], columns["weights"])
    assert computed(["xauc"], columns, "log_value")["xauc"] == pytest.approx(expected, rel=1e-12)
