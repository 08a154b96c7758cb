"""A user's own model, loss, metric and decay, for tests that name them in a configuration."""

import time

import torch
from torch import Tensor, nn

from trainer.config.optim import Schedule
from trainer.metrics.base import Metric
from trainer.models.base import ModelInputs


class Sum(nn.Module):
    """Logits are a linear layer over all pooled embeddings; dense features are not used."""

    def __init__(self, inputs):
        super().__init__()
        self.tables = inputs.tables
        width = sum(table.embedding_dim * len(table.feature_names) for table in inputs.tables.embedding_bag_configs())
        self.head = nn.Linear(width, inputs.labels, device=inputs.device)

    def forward(self, dense, sparse):
        return self.head(self.tables(sparse).values())


class Unhurried(Sum):
    """Takes 50 ms a step on any machine, so that what a test does in the middle of a run comes before its end."""

    def forward(self, dense, sparse):
        time.sleep(0.05)
        return super().forward(dense, sparse)


def sum_of_embeddings(inputs: ModelInputs) -> nn.Module:
    """Is called by `model.name = "custom:sum_of_embeddings"`."""
    assert inputs.config.arguments == {"depth": 3}
    return Sum(inputs)


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    """Is called by `model.loss = "custom:squared_error"`; returns `[B]`."""
    return (logits.sigmoid() - labels).square().sum(dim=1)


class BrierScore(Metric):
    """Mean squared error of the predictions, for `evaluate.metrics = ["custom:BrierScore"]`."""

    higher_is_better = False

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        errors = (logits.sigmoid() - labels).square()
        self.state += torch.stack([weights.sum(), (weights * errors).sum()])

    def compute(self, state: Tensor) -> dict[str, float]:
        weight, error = state.tolist()
        return {"": error / weight}


def halved(schedule: Schedule, step: int) -> float:
    """Is called by `schedule.decay = "custom:halved"`: half the rate at every step."""
    return 0.5
