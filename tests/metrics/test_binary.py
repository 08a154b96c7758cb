"""Metrics of binary labels against plain NumPy in float64."""

import math

import numpy as np
import pytest
import reference_metrics
import torch
from evaluated import computed
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_metrics import ordered_metrics

from trainer.core.distributed import process_group
from trainer.core.registry import find_by_name
from trainer.metrics import binary
from trainer.metrics.base import Samples
from trainer.metrics.registry import built_in

NAMES = ["auc", "auprc", "normalized_entropy", "log_loss", "calibration", "label_rate", "ece"]
NAMES += [f"{name}@{threshold}" for name in ("accuracy", "precision", "recall") for threshold in (0.5, 0.3)]


def columns(predictions, labels, weights=None):
    """Returns samples, which weigh 1 unless it is told otherwise."""
    predictions, labels = np.asarray(predictions, float), np.asarray(labels, float)
    weights = np.ones(len(labels)) if weights is None else weights
    return {"predictions": predictions, "labels": labels, "weights": weights}


@pytest.fixture(scope="module")
def samples():
    """Logits, labels and weights, some of them zero; the logits have ties."""
    random = np.random.default_rng(0)
    logits = np.round(random.normal(size=2000) * 3, 2)
    labels = (random.random(2000) < 1 / (1 + np.exp(-logits))).astype(float)
    return logits, labels, random.integers(0, 4, 2000).astype(float)


@pytest.fixture(scope="module")
def found(samples):
    return computed(NAMES, columns(*samples))


def mean_loss(logits, labels, weights):
    p = 1 / (1 + np.exp(-logits))
    return np.average(-(labels * np.log(p) + (1 - labels) * np.log(1 - p)), weights=weights)


def test_log_loss(samples, found):
    assert found["log_loss"] == pytest.approx(mean_loss(*samples), rel=1e-12)


def test_normalized_entropy(samples, found):
    rate = np.average(samples[1], weights=samples[2])
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    assert found["normalized_entropy"] == pytest.approx(mean_loss(*samples) / entropy, rel=1e-12)


def test_calibration(samples, found):
    logits, labels, weights = samples
    expected = (weights / (1 + np.exp(-logits))).sum() / (weights * labels).sum()
    assert found["calibration"] == pytest.approx(expected, rel=1e-12)


def test_label_rate(samples, found):
    assert found["label_rate"] == pytest.approx(np.average(samples[1], weights=samples[2]), rel=1e-12)


def exact_auc(logits, labels, weights):
    above = (logits[:, None] > logits[None, :]) + 0.5 * (logits[:, None] == logits[None, :])
    pairs = (weights * labels)[:, None] * (weights * (1 - labels))[None, :]
    return (above * pairs).sum() / pairs.sum()


def test_auc(samples, found):
    assert found["auc"] == pytest.approx(exact_auc(*samples), rel=1e-12)
    assert found["auc_error"] == 0


def test_auc_counts_ties_half():
    assert computed(["auc"], columns(np.zeros(8), np.arange(8) % 2)) == {"auc": 0.5, "auc_error": 0}


@pytest.mark.parametrize("counted", [binary.COUNTED, 0])
def test_calibration_curve(samples, counted, monkeypatch):
    monkeypatch.setattr(binary, "COUNTED", counted)
    logits, labels, weights = (torch.tensor(column) for column in samples)
    accumulated = binary.LogitHistogram(logits.device)
    accumulated.add(Samples(logits, labels, weights, logits, None))
    with process_group() as context:
        curve = {name: np.array(one) for name, one in binary.calibration_curve(accumulated.total(context)).items()}
    logits, labels, weights = samples
    values = np.unique(logits[weights > 0])
    of_value = np.array([weights[logits == value].sum() for value in values])
    middle = (of_value.cumsum() - of_value / 2) / of_value.sum()
    bins = np.floor(middle * binary.CURVE_BINS)
    rows = [np.isin(logits, values[bins == one]) for one in range(binary.CURVE_BINS)]
    expected = {
        "weight": [weights[row].sum() for row in rows],
        "observed": [np.average(labels[row], weights=weights[row]) for row in rows],
        "predicted": [np.average(1 / (1 + np.exp(-logits[row])), weights=weights[row]) for row in rows],
    }
    tolerance = 1e-12 if counted else 6.2e-5
    np.testing.assert_allclose(curve["predicted"], expected["predicted"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(curve["observed"], expected["observed"], rtol=1e-12)
    np.testing.assert_allclose(curve["weight"], expected["weight"], rtol=1e-12)


@pytest.mark.parametrize("different", [1, 2, 10, 1000])
def test_few_different_predictions_are_counted(different):
    """They are so close that all of them would share two bins."""
    random = np.random.default_rng(different)
    logits = random.choice(random.normal(size=different) * 1e-5, 150_000)
    labels, weights = random.integers(0, 2, 150_000), random.choice([0, 0.7, 1.9], 150_000)
    found = computed(reference_metrics.NAMES, columns(logits, labels, weights))
    for name, value in ordered_metrics(logits, labels, weights).items():
        assert found[name] == pytest.approx(value, rel=1e-11), name
        assert found[f"{name}_error"] == 0


def test_counted_until_there_are_too_many(monkeypatch):
    logits, labels = np.array([-20, -20, -20.1, 0, 1e-5, 0]), np.array([0, 1, 0, 0, 1, 1])
    for most, exact in [(4, True), (3, False)]:
        monkeypatch.setattr(binary, "COUNTED", most)
        found = computed(["auc"], columns(logits, labels))
        assert (found["auc_error"] == 0) == exact
        assert (found["auc"] == pytest.approx(exact_auc(logits, labels, np.ones(6)), rel=1e-12)) == exact


EDGE = 1 / binary.BINS_OF_ONE
CLOSE = st.sampled_from(
    [-30.0, -20.0, -16.0, 15.9999, 40.0, 0.0, -1e-17, 1e-17, 1e-5, 2e-5, EDGE / 2, EDGE, -0.8473, -0.847]
)
SAMPLE = st.tuples(CLOSE | st.floats(-18, 18), st.sampled_from([0.0, 1.0, 0.5]), st.sampled_from([0.0, 0.5, 1.0, 3.0]))


@pytest.mark.slow
def test_no_error_is_greater_than_its_bound(monkeypatch):
    monkeypatch.setattr(binary, "COUNTED", 0)
    metrics = {name: built_in(name) for name in reference_metrics.NAMES}
    functions = {name: (find_by_name("", entry.function, {}), numbers) for name, (entry, numbers) in metrics.items()}

    @settings(deadline=None, max_examples=300)
    @given(st.lists(SAMPLE, min_size=1, max_size=12))
    def check(rows):
        logits, labels, weights = torch.tensor(rows, dtype=torch.float64).T
        accumulated = binary.LogitHistogram(logits.device)
        accumulated.add(Samples(logits, labels, weights, logits, None))
        ordered = accumulated.total(context)
        for name, value in ordered_metrics(logits, labels, weights).items():
            function, numbers = functions[name]
            found = function(ordered, *numbers)
            assert math.isnan(value) or abs(found[""] - value) <= found["_error"] + 1e-12, name

    with process_group() as context:
        check()


def test_bounds_are_close(samples, monkeypatch):
    """The samples have few logits per bin, so a bound is about what one sample weighs."""
    monkeypatch.setattr(binary, "COUNTED", 0)
    found = computed(reference_metrics.NAMES, columns(*samples))
    for name, value in ordered_metrics(*samples).items():
        assert abs(found[name] - value) <= found[f"{name}_error"] < 2e-3, name


def test_a_prediction_that_is_no_number_makes_no_metric(samples):
    logits, labels, weights = samples
    broken = np.where(np.arange(2000) == 7, np.nan, logits)
    found = computed(reference_metrics.NAMES, columns(broken, labels, np.maximum(weights, 1)))
    assert {name for name, value in found.items() if not math.isnan(value)} == set()


def test_auprc_is_the_mean_precision_at_the_positives(samples, found):
    logits, labels, weights = samples
    at_or_above = logits[None, :] >= logits[:, None]
    precisions = (at_or_above * (weights * labels)).sum(1) / np.maximum((at_or_above * weights).sum(1), 1e-300)
    assert found["auprc"] == pytest.approx(np.average(precisions, weights=weights * labels), rel=1e-12)


def test_auprc_of_a_few():
    """The positives are first, third and fifth."""
    found = computed(["auprc"], columns([5, 4, 3, 2, 1], [1, 0, 1, 0, 1]))
    assert found == {"auprc": pytest.approx((1 + 2 / 3 + 3 / 5) / 3, rel=1e-12), "auprc_error": 0}


def test_ece(samples, found):
    logits, labels, weights = samples
    p, total = 1 / (1 + np.exp(-logits)), 0.0
    for low in range(15):
        inside = (p * 15 >= low) & (p * 15 < low + 1)
        if weights[inside].sum():
            means = [np.average(values[inside], weights=weights[inside]) for values in (p, labels)]
            total += weights[inside].sum() * abs(means[0] - means[1])
    assert found["ece"] == pytest.approx(total / weights.sum(), rel=1e-12)


@pytest.mark.parametrize("threshold", [0.5, 0.3])
def test_thresholds(samples, found, threshold):
    logits, labels, weights = samples
    high = 1 / (1 + np.exp(-logits)) >= threshold
    both = (weights * labels * high).sum()
    expected = {
        "accuracy": (weights * (labels == high)).sum() / weights.sum(),
        "precision": both / (weights * high).sum(),
        "recall": both / (weights * labels).sum(),
    }
    for name, value in expected.items():
        assert found[f"{name}@{threshold}"] == pytest.approx(value, rel=1e-12), name


def test_log_probabilities_are_judged_as_the_logits_of_the_same_probabilities(samples):
    logits, labels, weights = samples
    same = computed(NAMES, columns(-np.log1p(np.exp(-logits)), labels, weights), output="log_probability")
    logits = computed(NAMES, columns(logits, labels, weights))
    for name, value in logits.items():
        assert same[name] == pytest.approx(value, rel=1e-9 if "auc" not in name else 1e-4), name


def test_certain_log_probabilities_have_a_finite_loss():
    """Float32 has no probability between these and 0 or 1, where the loss would be infinite or not defined."""
    settings = {"output": "log_probability"}
    assert computed(["log_loss"], columns([0.0, -np.inf], [1, 0]), **settings) == {"log_loss": pytest.approx(0)}
    assert computed(["log_loss"], columns([0.0], [0]), **settings)["log_loss"] == pytest.approx(87.3, abs=0.1)


def test_samples_of_weight_zero_change_nothing(samples):
    logits, labels, weights = samples
    some = weights > 0
    without = computed(NAMES, columns(logits[some], labels[some], weights[some]))
    assert computed(NAMES, columns(*samples)) == pytest.approx(without, rel=1e-14)
    assert all(math.isnan(value) for value in computed(NAMES, columns(logits, labels, np.zeros(2000))).values())


def test_one_class_alone():
    found = computed(NAMES, columns(np.zeros(3), np.ones(3)))
    assert {name for name, value in found.items() if math.isnan(value)} == {"auc", "auc_error", "normalized_entropy"}
    assert found["label_rate"] == found["auprc"] == found["precision@0.5"] == 1


def test_scores_of_both_classes_are_judged_as_their_difference(samples, found):
    logits, labels, weights = samples
    both = np.stack([-logits, np.zeros(2000)], axis=1)
    assert computed(NAMES, columns(both, labels, weights)) == found
