"""Metrics of predicted values, weighted, in float64."""

import math

import torch
from torch import Tensor

from trainer.metrics.base import Sums
from trainer.metrics.ratio import ratio


class Errors(Sums):
    """Sums of weights, absolute errors, squared errors, labels and squared labels, `[5]`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (5,))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums; the predictions are values, not logits."""
        errors = logits - labels
        terms = torch.stack([torch.ones_like(labels), errors.abs(), errors.square(), labels, labels.square()])
        self.state += (weights * terms).sum(1)


def mae(sums: Tensor) -> dict[str, float]:
    """Returns the mean absolute error."""
    weight, absolute, *_ = sums.tolist()
    return ratio(absolute, weight)


def mse(sums: Tensor) -> dict[str, float]:
    """Returns the mean squared error."""
    weight, _, squared, *_ = sums.tolist()
    return ratio(squared, weight)


def rmse(sums: Tensor) -> dict[str, float]:
    """Returns the root of the mean squared error."""
    return {"": math.sqrt(mse(sums)[""])}


def r2(sums: Tensor) -> dict[str, float]:
    """Returns the coefficient of determination: 1 minus the squared errors over those of always predicting the mean."""
    weight, _, squared, label, label_squared = sums.tolist()
    mean = ratio(label, weight)[""]
    return {"": 1 - ratio(squared, label_squared - label * mean)[""]}
