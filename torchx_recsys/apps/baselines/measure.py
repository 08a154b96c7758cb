"""Measures predictions by the trainer's own metrics, over all rows of a split."""

import math
from collections.abc import Mapping

import numpy as np
import torch

from torchx_recsys.apps.baselines.problem import LEAST, Predict, Problem
from torchx_recsys.apps.baselines.rows import Table
from trainer.core.distributed import DistributedContext
from trainer.metrics.evaluation import Metrics
from trainer.models.base import BatchOutputs


class Measured:
    """The metrics of a baseline, as of a model that predicts the same.

    Args:
        problem: The task.
        context: This process.
    """

    def __init__(self, problem: Problem, context: DistributedContext) -> None:
        self._problem, self._context = problem, context
        self._metrics = Metrics(problem.config, context.device)

    def add(self, predict: Predict, table: Table) -> None:
        """Adds rows."""
        self._metrics.update(outputs_of(self._problem, predict(table), table, self._context.device))

    def compute(self) -> dict[str, float]:
        """Returns the metrics over all rows."""
        return finite(self._metrics.compute(self._context))


def outputs_of(problem: Problem, predictions: np.ndarray, table: Table, device: torch.device) -> BatchOutputs:
    """Returns predictions in the form of a model's, float32."""
    found = torch.from_numpy(np.ascontiguousarray(predictions, np.float32))
    labels_of_task = problem.labels(table)
    if problem.kind == "classes":
        missing = int(labels_of_task.max(initial=0)) + 1 - found.shape[1]
        found = torch.nn.functional.pad(found, (0, max(0, missing)), value=math.log(LEAST))
    if problem.kind == "count":
        found = found.clamp(min=LEAST).log()
    if problem.task.output == "log_probability":
        found = torch.nn.functional.logsigmoid(found)
    arrays = (table.labels.T, table.weights, table.rows.groups.T)
    labels, weights, groups = (torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays)
    return BatchOutputs(
        torch.zeros((), device=device), {str(problem.task.prediction): found.to(device)}, labels, weights, groups
    )


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics that are numbers, without their error bounds."""
    return {
        name: value
        for name, value in metrics.items()
        if math.isfinite(value) and not (name.endswith("_error") and name.removesuffix("_error") in metrics)
    }
