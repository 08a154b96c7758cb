"""Metrics of binary labels, each alone, against plain NumPy in float64."""

import math

import numpy as np
import pytest
import torch

from trainer.core.registry import find_by_name
from trainer.metrics.binary import LOGIT_LIMIT, Auc, Calibration, LabelRate, LogLoss, NormalizedEntropy
from trainer.metrics.registry import HIGHER_IS_BETTER, METRICS, higher_is_better

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def samples():
    """Logits, labels and weights, some of them zero; the logits have ties."""
    random = np.random.default_rng(0)
    logits = np.round(random.normal(size=2000) * 3, 2)
    labels = (random.random(2000) < 1 / (1 + np.exp(-logits))).astype(float)
    return logits, labels, random.integers(0, 4, 2000).astype(float)


def streamed(kind, samples, parts=7):
    """Returns a metric that was given the samples in parts of unequal size."""
    metric = kind(CPU)
    for part in np.array_split(np.arange(len(samples[0])), parts):
        metric.update(*(torch.tensor(values[part], dtype=torch.float64) for values in samples))
    return metric


def computed(kind, samples):
    metric = streamed(kind, samples)
    return metric.compute(metric.state)


def mean_loss(logits, labels, weights):
    p = 1 / (1 + np.exp(-logits))
    return np.average(-(labels * np.log(p) + (1 - labels) * np.log(1 - p)), weights=weights)


def test_log_loss(samples):
    assert computed(LogLoss, samples) == {"": pytest.approx(mean_loss(*samples), rel=1e-12)}


def test_normalized_entropy(samples):
    rate = np.average(samples[1], weights=samples[2])
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    assert computed(NormalizedEntropy, samples) == {"": pytest.approx(mean_loss(*samples) / entropy, rel=1e-12)}


def test_calibration(samples):
    logits, labels, weights = samples
    expected = (weights / (1 + np.exp(-logits))).sum() / (weights * labels).sum()
    assert computed(Calibration, samples) == {"": pytest.approx(expected, rel=1e-12)}


def test_label_rate(samples):
    assert computed(LabelRate, samples) == {"": pytest.approx(np.average(samples[1], weights=samples[2]), rel=1e-12)}


def exact_auc(logits, labels, weights):
    above = (logits[:, None] > logits[None, :]) + 0.5 * (logits[:, None] == logits[None, :])
    pairs = (weights * labels)[:, None] * (weights * (1 - labels))[None, :]
    return (above * pairs).sum() / pairs.sum()


def test_auc_is_as_exact_as_it_reports(samples):
    found = computed(Auc, samples)
    assert 0 < found["_error"] < 2e-3
    assert found[""] == pytest.approx(exact_auc(*samples), abs=found["_error"])


def test_auc_counts_ties_half():
    assert computed(Auc, (np.zeros(8), np.arange(8) % 2.0, np.ones(8))) == {"": 0.5, "_error": 0.5}


def test_auc_of_logits_beyond_its_bins():
    limit = LOGIT_LIMIT
    logits, labels = np.array([-9 * limit, -limit, limit, 9 * limit]), np.array([0.0, 0.0, 1.0, 1.0])
    assert computed(Auc, (logits, labels, np.ones(4))) == {"": 1.0, "_error": 0.0}


@pytest.mark.parametrize("name", METRICS)
def test_states_of_ranks_add_up(samples, name):
    kind = find_by_name("evaluate.metrics", name, METRICS)
    ranks = [streamed(kind, [values[part] for values in samples]) for part in (slice(0, 500), slice(500, None))]
    assert ranks[0].state.dtype == torch.float64
    assert ranks[0].compute(ranks[0].state + ranks[1].state) == pytest.approx(computed(kind, samples), rel=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_samples_of_weight_zero_change_nothing(samples, name):
    kind = find_by_name("evaluate.metrics", name, METRICS)
    logits, labels, _ = samples
    metric = streamed(kind, (logits, labels, np.zeros(len(logits))))
    assert not metric.state.any()
    assert all(math.isnan(value) for value in metric.compute(metric.state).values())


@pytest.mark.parametrize("name", METRICS)
def test_the_registry_knows_the_direction_of_each_class(name):
    assert find_by_name("evaluate.metrics", name, METRICS).higher_is_better is HIGHER_IS_BETTER[name]
    assert higher_is_better(f"{name}/click") is HIGHER_IS_BETTER[name]


@pytest.mark.parametrize(("kind", "value"), [(Auc, math.nan), (NormalizedEntropy, math.nan), (LabelRate, 1.0)])
def test_one_class_alone(kind, value):
    found = computed(kind, (np.zeros(3), np.ones(3), np.ones(3)))
    assert found[""] == pytest.approx(value, nan_ok=True)
