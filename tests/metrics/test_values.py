"""Metrics of values and of classes against plain NumPy in float64."""

import math

import numpy as np
import pytest
from evaluated import computed
from sklearn.metrics import mean_poisson_deviance, roc_auc_score, top_k_accuracy_score


@pytest.fixture(scope="module")
def values():
    random = np.random.default_rng(1)
    labels = np.round(random.normal(size=500) * 40 + 100)
    predictions = labels + random.normal(size=500) * 10
    return {"predictions": predictions, "labels": labels, "weights": random.integers(0, 3, 500).astype(float)}


def test_errors_of_values(values):
    labels, weights = values["labels"], values["weights"]
    errors = values["predictions"] - labels
    squared = np.average(errors**2, weights=weights)
    spread = np.average((labels - np.average(labels, weights=weights)) ** 2, weights=weights)
    expected = {
        "mae": np.average(abs(errors), weights=weights),
        "mse": squared,
        "rmse": math.sqrt(squared),
        "r2": 1 - squared / spread,
    }
    assert computed([*expected], values, output="value") == pytest.approx(expected, rel=1e-12)


def test_a_value_has_metrics_by_default(values):
    assert computed(None, values, output="value").keys() == {"mae", "rmse"}


def test_counts():
    random = np.random.default_rng(3)
    counts = {"predictions": random.normal(size=500), "weights": random.integers(0, 3, 500).astype(float)}
    counts["labels"] = random.poisson(np.exp(counts["predictions"] + 0.5)).astype(float)
    labels, weights, values = counts["labels"], counts["weights"], np.exp(counts["predictions"])
    expected = {
        "poisson_deviance": mean_poisson_deviance(labels, values, sample_weight=weights),
        "calibration": (weights * values).sum() / (weights * labels).sum(),
        "mae": np.average(abs(values - labels), weights=weights),
        "rmse": math.sqrt(np.average((values - labels) ** 2, weights=weights)),
    }
    assert computed(None, counts, output="log_value") == pytest.approx(expected, rel=1e-12)


def test_equal_labels_have_no_r2():
    columns = {"predictions": np.zeros(3), "labels": np.ones(3), "weights": np.ones(3)}
    found = computed(["r2", "mae"], columns, output="value")
    assert math.isnan(found["r2"])
    assert found["mae"] == 1


def test_no_samples_have_no_errors(values):
    nothing = values | {"weights": np.zeros(500)}
    assert all(math.isnan(value) for value in computed(["mae", "mse", "rmse", "r2"], nothing, output="value").values())


@pytest.fixture(scope="module")
def classes():
    random = np.random.default_rng(2)
    scores, labels = random.normal(size=(300, 5)), random.integers(0, 5, 300)
    return {
        "predictions": scores,
        "labels": labels.astype(float),
        "weights": random.integers(0, 3, 300).astype(float),
    }


def test_metrics_of_classes(classes):
    scores, labels, weights = classes["predictions"], classes["labels"].astype(int), classes["weights"]
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = {
        "accuracy": np.average(scores.argmax(1) == labels, weights=weights),
        "cross_entropy": np.average(-np.log(chances[np.arange(300), labels]), weights=weights),
    }
    assert computed(None, classes, loss="softmax") == pytest.approx(expected, rel=1e-12)


def test_ranks_of_classes_are_those_of_scikit_learn(classes):
    scores, labels, weights = classes["predictions"], classes["labels"], classes["weights"]
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    expected = {f"accuracy@{k}": top_k_accuracy_score(labels, scores, k=k, sample_weight=weights) for k in (1, 2, 4)}
    expected |= {"accuracy": expected["accuracy@1"], "accuracy@5": 1, "accuracy@9": 1, "auc_error": 0}
    areas = [roc_auc_score(labels == number, chances[:, number], sample_weight=weights) for number in range(5)]
    found = computed(["auc", "accuracy", *(f"accuracy@{k}" for k in (1, 2, 4, 5, 9))], classes, loss="softmax")
    assert found == pytest.approx(expected | {"auc": np.mean(areas)}, rel=1e-12)


def test_a_class_that_ties_has_a_part_of_each_rank_and_one_without_a_score_none():
    scores = np.array([[1.0, 1.0, 0.0, 1.0], [2.0, 3.0, 2.0, 0.0], [math.nan, 1.0, 1.0, 1.0]])
    columns = {"predictions": scores, "labels": np.array([1.0, 2.0, 0.0]), "weights": np.array([3.0, 1.0, 2.0])}
    found = computed(["accuracy@1", "accuracy@2", "accuracy@3"], columns, loss="softmax")
    assert found == pytest.approx({"accuracy@1": 1 / 6, "accuracy@2": 2.5 / 6, "accuracy@3": 4 / 6})


def test_classes_without_samples_are_left_out_of_the_mean(classes):
    some = {name: values[classes["labels"] < 2] for name, values in classes.items()}
    areas = computed(["auc", "accuracy@1"], some, loss="softmax")
    two = {**some, "predictions": some["predictions"][:, :2]}
    assert 0 < areas["auc"] < 1
    assert areas["auc"] != computed(["auc"], two, loss="softmax")["auc"]
    one = {name: values[classes["labels"] == 1] for name, values in classes.items()}
    assert math.isnan(computed(["auc"], one, loss="softmax")["auc"])
