"""The metrics of an evaluation: chosen by name, one set per label."""

import numpy as np
import pytest
import torch
from evaluated import metrics_of, outputs

from trainer.core.distributed import process_group
from trainer.core.errors import InputError


def computed(names, labels, logits, targets, weights):
    metrics = metrics_of(names, labels)
    logits, targets, weights = (torch.tensor(values, dtype=torch.float32) for values in (logits, targets, weights))
    predictions = dict(zip(labels, logits.unbind(1), strict=True))
    metrics.update(outputs(predictions, targets, weights))
    with process_group() as context:
        return metrics.compute(context)


def test_names_are_followed_by_the_label_where_there_are_several():
    values = np.zeros((4, 2)), np.ones((4, 2)), np.array([1.0, 2.0, 0.0, 0.0])
    found = computed(["label_rate", "auc"], ["click", "buy"], *values)
    names = {"label_rate/click", "label_rate/buy", "auc/click", "auc_error/click", "auc/buy", "auc_error/buy"}
    assert found.keys() == names | {"samples"}
    assert found["samples"] == 2
    assert computed(["label_rate"], ["click"], np.zeros((1, 1)), np.ones((1, 1)), np.ones(1)).keys() == {
        "label_rate",
        "samples",
    }


def test_a_custom_metric_is_called_by_its_class():
    logits, targets, weights = np.zeros((3, 1)), np.array([[0.0], [1.0], [0.5]]), np.array([1.0, 1.0, 2.0])
    found = computed(["custom:BrierScore"], ["label"], logits, targets, weights)
    assert found == {"brier_score": pytest.approx(0.125), "samples": 3}


def test_an_unknown_metric_is_the_users_mistake():
    with pytest.raises(InputError, match=r"^evaluate.metrics is 'acu'; did you mean 'auc'\?"):
        metrics_of(["log_loss", "acu"], ["label"])
