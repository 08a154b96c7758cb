"""Metrics of predicted values, counts and classes, weighted, in float64."""

import math

import torch
from torch import Tensor

from trainer.metrics.base import Sums, ratio
from trainer.models.losses import softmax


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
    """Returns the coefficient of determination: 1 minus the squared errors over the squared errors of the mean."""
    weight, _, squared, label, label_squared = sums.tolist()
    mean = ratio(label, weight)[""]
    return {"": 1 - ratio(squared, label_squared - label * mean)[""]}


class CountSums(Sums):
    """Sums of weights, of predicted values, of labels and of Poisson deviances, `[4]`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (4,))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums; the predictions are values above 0, not logits."""
        deviances = 2 * (torch.xlogy(labels, labels / logits) - labels + logits)
        self.state += (weights * torch.stack([torch.ones_like(labels), logits, labels, deviances])).sum(1)


def poisson_deviance(sums: Tensor) -> dict[str, float]:
    """Returns the mean Poisson deviance: twice how much likelier, in logarithms, the labels would be of themselves."""
    weight, *_, deviance = sums.tolist()
    return ratio(deviance, weight)


def calibration(sums: Tensor) -> dict[str, float]:
    """Returns the sum of the predicted values over the sum of the labels; 1 is best."""
    _, predicted, label, _ = sums.tolist()
    return ratio(predicted, label)


class ClassSums(Sums):
    """Sums of weights, of right predictions and of losses (softmax cross-entropy), `[3]`."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, (3,))

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Adds to the sums; the scores are `[B, C]`, the labels numbers of classes."""
        losses, right = softmax(logits, labels), logits.argmax(1) == labels
        self.state += torch.stack([weights.sum(), (weights * right).sum(), (weights * losses).sum()])


def accuracy(sums: Tensor) -> dict[str, float]:
    """Returns the share of samples whose class has the highest score."""
    weight, right, _ = sums.tolist()
    return ratio(right, weight)


def cross_entropy(sums: Tensor) -> dict[str, float]:
    """Returns the mean softmax cross-entropy."""
    weight, _, loss = sums.tolist()
    return ratio(loss, weight)
