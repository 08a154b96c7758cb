"""What a baseline is given and gives: a task with its rows, and a function from rows to predictions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from scipy.special import xlogy

from torchx_recsys.apps.baselines.rows import Table
from trainer.config.root import Config
from trainer.config.tasks import TaskConfig
from trainer.core.errors import InputError
from trainer.metrics.registry import prediction_kind

if TYPE_CHECKING:
    from torchx_recsys.apps.baselines.items import Items

Option = TypeVar("Option")
Predict = Callable[[Table], np.ndarray]
"""Predicts `R` rows: logits, values or counts `[R]`, a score for each class `[R, C]`, or for each item `[R, I]`."""
LEAST = 1e-7  # a probability is at least this, and at most 1 minus this: a rate of 0 has no logit, a count no logarithm


class LeftOut(Exception):
    """A baseline that does not suit the data; the message says why."""


@dataclass(frozen=True)
class Fitted:
    """A baseline after training.

    Attributes:
        predict: Its predictions.
        chosen: What was chosen on data.validation, in words; empty if nothing was.
    """

    predict: Predict
    chosen: str = ""


@dataclass(frozen=True)
class Problem:
    """A task and its rows.

    Attributes:
        name: Name of the task.
        task: The task.
        config: The configuration, with this task only.
        train: The rows to train on.
        validation: The rows to choose by; None without any.
        user: The feature or group that names users; None if there is none.
        item: The feature or group that names items; None if there is none.
        seed: Seed of random choices.
        items: The items, if they are to be found.
        loss_of_items: Returns the loss of scores of items on data.validation, to choose by.
    """

    name: str
    task: TaskConfig
    config: Config
    train: Table
    validation: Table | None
    user: str | None
    item: str | None
    seed: int
    items: "Items | None" = None
    loss_of_items: Callable[[Predict], float] | None = None

    @property
    def is_numeric(self) -> bool:
        """Whether a value or a count is predicted."""
        return self.kind in ("value", "count")

    @property
    def kind(self) -> str:
        """What is predicted; a score that only orders samples is one of values if its labels are."""
        kind = prediction_kind(self.task)
        return "value" if kind == "probability" and self.task.label in self.config.data.numeric_labels else kind

    def labels(self, table: Table) -> np.ndarray:
        """Returns the labels, `[R]` float64.

        Raises:
            InputError: A label is below 0, and a count is predicted.
        """
        labels = table.label(str(self.task.label)).astype(np.float64)
        if self.kind == "count" and labels.min(initial=0) < 0:
            raise InputError(
                f"tasks.{self.name}.label is '{self.task.label}', a column with the value {labels.min():g}, but the "
                "loss 'poisson' takes labels from 0 up; correct the data"
            )
        return labels

    def weights(self, table: Table) -> np.ndarray:
        """Returns the weight of each row in the loss and the metrics of the task, `[R]` float64."""
        weights, where = table.weights.astype(np.float64), self.task.where
        if where.column is None:
            return weights
        return weights * np.where(table.label(where.column) != 0, 1.0, where.outside)

    @cached_property
    def trained(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels and weights of the rows to train on, `[R]` both."""
        return self.labels(self.train), self.weights(self.train)

    def choose(
        self, options: Iterable[Option], fit: Callable[[Option], Predict], every: bool = False
    ) -> tuple[Option, Predict]:
        """Returns the first option that is better on data.validation than the next one, and its predictions.

        Args:
            options: The options in their order; without data.validation the first one is taken.
            fit: Trains with an option.
            every: Whether to take the best of all options, which have no order.
        """
        best: tuple[float, Option, Predict] | None = None
        for option in options:
            predict = fit(option)
            if self.validation is None:
                return option, predict
            loss = self._loss(predict, self.validation)
            if best is None or loss < best[0]:
                best = loss, option, predict
            elif not every:
                break
        assert best is not None
        return best[1:]

    def _loss(self, predict: Predict, table: Table) -> float:
        """Returns the mean log loss, squared error, deviance or cross-entropy of predictions, or that of items."""
        if self.loss_of_items is not None:
            return self.loss_of_items(predict)
        labels, weights = self.labels(table), self.weights(table)
        losses = LOSSES[self.kind](predict(table).astype(np.float64), labels)
        return float(np.average(losses, weights=weights)) if weights.sum() else float(losses.mean())


def log_losses(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the binary cross-entropy of each row, `[R]`."""
    return np.logaddexp(0, logits) - labels * logits


def _squared(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.square(values - labels)


def _deviances(counts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    counts = np.maximum(counts, LEAST)
    return 2 * (xlogy(labels, labels / counts) - labels + counts)


def _of_classes(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    classes = labels.astype(np.int64)
    own = np.full(len(labels), np.log(LEAST))
    inside = classes < scores.shape[1]
    own[inside] = scores[inside, classes[inside]]
    return np.logaddexp.reduce(scores, axis=1) - own


LOSSES: dict[str, Any] = {"probability": log_losses, "value": _squared, "count": _deviances, "classes": _of_classes}


def logit(rates: np.ndarray | float) -> np.ndarray:
    """Returns the logits of probabilities, of which 0 and 1 are taken as the nearest that has one."""
    inside = np.clip(rates, LEAST, 1 - LEAST)
    return np.log(inside) - np.log1p(-inside)
