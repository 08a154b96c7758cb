"""Constants: the label rate, also by group, the rates of classes, the mean."""

from collections.abc import Callable

import numpy as np

from torchx_recsys.apps.baselines.problem import LEAST, Fitted, LeftOut, Problem, logit
from torchx_recsys.apps.baselines.rows import Table

PRIORS = (1.0, 10.0, 100.0)  # samples of the overall rate that each group's are joined with


def label_rate(problem: Problem) -> Fitted:
    """The same probability for all samples: the label rate."""
    rate = logit(overall(problem))
    return Fitted(lambda table: np.full(len(table), rate))


def mean(problem: Problem) -> Fitted:
    """The same value for all samples: the mean label."""
    value = overall(problem)
    return Fitted(lambda table: np.full(len(table), value))


def class_rates(problem: Problem) -> Fitted:
    """The same probabilities for all samples: the rate of each class."""
    labels, weights = problem.trained
    counts = np.bincount(labels.astype(np.int64), weights=weights)
    scores = np.log(np.maximum(counts / counts.sum(), LEAST))
    return Fitted(lambda table: np.tile(scores, (len(table), 1)))


def rate_by_group(problem: Problem, column: str) -> Fitted:
    """The label rate of each group, pulled to the overall rate by a number of samples."""
    rate, by = overall(problem), Groups(problem.train.key(column))
    weight, positive = by.sums(problem.trained[1]), by.sums(problem.trained[0] * problem.trained[1])

    def fit(prior: float) -> Callable[[Table], np.ndarray]:
        scores = logit(np.append((positive + prior * rate) / (weight + prior), rate))
        return lambda table: scores[by.places(table.key(column))]

    prior, predict = problem.choose(PRIORS, fit)
    return Fitted(predict, f"by {column}, {prior:g} samples of the overall rate")


def overall(problem: Problem) -> float:
    """Returns the mean label, by weight."""
    labels, weights = problem.trained
    if not weights.sum() > 0:
        raise LeftOut("every sample to train on has weight 0")
    return float(np.average(labels, weights=weights))


class Groups:
    """Groups of samples, numbered in the order of their keys.

    Args:
        keys: The key of each sample to train on, `[R]`.
    """

    def __init__(self, keys: np.ndarray) -> None:
        self._known, self._of_samples = np.unique(keys, return_inverse=True)

    def __len__(self) -> int:
        return len(self._known)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of values of the samples to train on in each group, `[G]`."""
        return np.bincount(self._of_samples, weights=values, minlength=len(self))

    @property
    def of_samples(self) -> np.ndarray:
        """The group of each sample to train on, `[R]`."""
        return self._of_samples

    def places(self, keys: np.ndarray) -> np.ndarray:
        """Returns the group of each key, `[R]`; `G` for an unknown one."""
        found = np.minimum(np.searchsorted(self._known, keys), len(self) - 1)
        return np.where(self._known[found] == keys, found, len(self))
