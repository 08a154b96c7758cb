"""Metrics of predicted values, counts and classes, weighted, in float64."""

import math

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trainer.core.distributed import DistributedContext, gather_to_all
from trainer.metrics.base import Samples, Sums, ratio
from trainer.metrics.binary import LogitHistogram, OrderedWeights
from trainer.metrics.binary import auc as auc_of_class
from trainer.models.losses import softmax, to_logit


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


class ClassRanks:
    """The weight of all samples, and that of samples by the rank of their class among the scores, `[1 + C]`.

    A sample whose class ties with others has an equal part of its weight at each of their ranks.

    Args:
        device: Device of the predictions.
    """

    def __init__(self, device: torch.device) -> None:
        self._weights = torch.zeros(1, dtype=torch.float64, device=device)  # the classes are those of the scores

    def add(self, samples: Samples) -> None:
        """Adds samples of this rank."""
        counted = samples.weights > 0
        scores, weights = samples.predictions[counted], samples.weights[counted]
        own = scores.gather(1, samples.labels[counted].long()[:, None])
        above, ties = (~(scores <= own)).sum(1), (scores == own).sum(1)  # a NaN is above all, and has no rank
        rank = torch.arange(scores.shape[1], device=scores.device)
        shares = (rank >= above[:, None]) & (rank < (above + ties)[:, None])
        sums = torch.cat([weights.sum(0, keepdim=True), (shares * (weights / ties.clamp(min=1))[:, None]).sum(0)])
        sums[: len(self._weights)] += self._weights
        self._weights = sums

    def total(self, context: DistributedContext) -> Tensor:
        """Returns the weights of all ranks."""
        of_ranks = gather_to_all(self._weights.cpu(), context)
        return pad_sequence(of_ranks).sum(1)  # a rank without samples knows no classes


def accuracy_of_first(weights: Tensor, k: int) -> dict[str, float]:
    """Returns the share of samples whose class is among the k with the highest scores."""
    return ratio(weights[1 : k + 1].sum().item(), weights[0].item())


class ClassHistograms:
    """For each class, the weights of other samples and its own by the logit of its probability.

    Args:
        device: Device of the predictions.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._classes: list[LogitHistogram] = []

    def add(self, samples: Samples) -> None:
        """Adds samples of this rank."""
        logits = to_logit(samples.predictions.log_softmax(1))
        self._make(logits.shape[1])
        for number, histogram in enumerate(self._classes):
            own = samples._replace(predictions=logits[:, number], labels=(samples.labels == number).double())
            histogram.add(own)

    def total(self, context: DistributedContext) -> list[OrderedWeights]:
        """Returns the weights of all ranks, by class."""
        self._make(max(gather_to_all(len(self._classes), context)))
        return [histogram.total(context) for histogram in self._classes]

    def _make(self, classes: int) -> None:
        """Adds histograms up to a number of classes; a rank without samples knows of none."""
        self._classes += [LogitHistogram(self._device) for _ in range(len(self._classes), classes)]


def auc(classes: list[OrderedWeights]) -> dict[str, float]:
    """Returns the mean over the classes of the AUC of one beside all others, without classes that have no samples."""
    found = [one for one in map(auc_of_class, classes) if not math.isnan(one[""])]
    return {part: ratio(sum(one[part] for one in found), len(found))[""] for part in ("", "_error")}
