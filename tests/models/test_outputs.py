"""The columns that predictions become, against NumPy."""

import numpy as np
import pytest
import torch

from trainer.config.root import Config
from trainer.models.outputs import compute_outputs, model_outputs

Z, PAIRS = torch.tensor([-30.0, 0.5, 40.0]), torch.tensor([[1.0, 3.0], [0.0, 0.0], [9.0, -9.0]])
DATA = {"labels": ["label"], "numeric_labels": ["label"], "groups": ["user"]}
BINARY = {"labels": ["label"], "groups": ["user"]}


def sigmoid(z):
    return 1 / (1 + np.exp(-z.double().numpy()))


@pytest.mark.parametrize(
    ("task", "data", "prediction", "expected"),
    [
        ({}, BINARY, Z, {"task_probability": sigmoid(Z)}),
        ({"output": "log_probability"}, BINARY, -Z.abs(), {"task_probability": np.exp(-Z.abs().numpy())}),
        (
            {"loss": "jrc", "group": "user"},
            BINARY,
            PAIRS,
            {"task_probability": sigmoid(PAIRS[:, 1] - PAIRS[:, 0])},
        ),
        ({"loss": "bpr", "group": "user"}, DATA, Z, {"task_score": Z.numpy()}),
        ({"loss": "huber"}, DATA, Z, {"task_value": Z.numpy()}),
        ({"loss": "squared", "mean": 3.5, "std": 2.0}, DATA, Z, {"task_value": 2 * Z.numpy() + 3.5}),
        ({"loss": "poisson"}, DATA, Z, {"task_value": np.exp(Z.numpy())}),
        ({"loss": "poisson", "mean": 2.0, "std": 0.5}, DATA, Z, {"task_value": np.exp(0.5 * Z.numpy() + 2.0)}),
        (
            {"loss": "softmax"},
            DATA,
            PAIRS,
            {"task_probabilities": np.exp(PAIRS.numpy()) / np.exp(PAIRS.numpy()).sum(1, keepdims=True)},
        ),
        (
            {"loss": "in_batch_softmax"},
            BINARY,
            torch.arange(12.0).view(2, 2, 3),
            {"task_query": [[0, 1, 2], [6, 7, 8]], "task_item": [[3, 4, 5], [9, 10, 11]]},
        ),
    ],
)
def test_each_kind(task, data, prediction, expected):
    config = Config.model_validate(
        {"data": data, "model": {"name": "custom:Sum"}, "tasks": {"task": {"label": "label", **task}}}
    )
    outputs = model_outputs(config)
    found = compute_outputs(outputs, {"task": prediction})
    assert [output.name for output in outputs] == [*expected]
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].numpy(), values, rtol=1e-6)


def test_a_class_has_a_column():
    data = {"labels": ["cut", "click"], "numeric_labels": ["cut"], "classes": {"cut": ["fair", "good", "ideal"]}}
    tasks = {"click": {}, "cut": {"loss": "softmax"}}
    config = Config.model_validate({"data": data, "tasks": tasks})
    assert config.predictions() == {"click": 1, "cut": 3}
    found = compute_outputs(model_outputs(config), torch.tensor([[0.0, 1.0, 1.0, 1.0]]))
    assert found["cut_probabilities"].numpy() == pytest.approx(np.full((1, 3), 1 / 3))


def test_columns_are_in_the_order_of_the_tasks_and_there_once():
    tasks = {
        "buy": {"label": "b"},
        "click": {"label": "a"},
        "order": {"label": "a", "prediction": "click", "loss": "bpr", "group": "user"},
        "again": {"label": "a", "prediction": "click"},
    }
    config = Config.model_validate({"data": {"labels": ["a", "b"], "groups": ["user"]}, "tasks": tasks})
    found = compute_outputs(model_outputs(config), torch.tensor([[0.0, 2.0]]))
    assert [*found] == ["buy_probability", "click_probability", "click_score"]
    assert found["buy_probability"].item() == 0.5
    assert found["click_score"].item() == 2.0
