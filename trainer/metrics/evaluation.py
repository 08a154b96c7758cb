"""The metrics of an evaluation, task by task, over the samples of all ranks."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.config.tasks import Output, TaskConfig
from trainer.core.distributed import DistributedContext, sum_over_ranks
from trainer.core.registry import find_by_name
from trainer.metrics.base import Accumulator, Samples
from trainer.metrics.binary import OrderedWeights, calibration_curve
from trainer.metrics.registry import BuiltIn, built_in, metrics_of, own_metric, prediction_kind, result_name
from trainer.metrics.retrieval import ItemVectors
from trainer.models.base import BatchOutputs
from trainer.models.losses import to_logit
from trainer.models.tasks import subspace_factor

FLOAT32 = torch.finfo(torch.float32)


class Metrics:
    """Metrics of all tasks over all ranks.

    Args:
        config: The configuration, for its tasks.
        device: Device of the predictions.
        items: The items of the catalogue by prediction, for `predictions_of_items`.

    Raises:
        InputError: There is no such metric.
    """

    def __init__(self, config: Config, device: torch.device, items: Mapping[str, ItemVectors] | None = None) -> None:
        self._tasks = {
            name: _TaskMetrics(name, config, device, (items or {}).get(str(task.prediction)))
            for name, task in config.named_tasks().items()
        }
        self._samples = torch.zeros(1, dtype=torch.float64, device=device)

    def update(self, outputs: BatchOutputs) -> None:
        """Adds samples; samples of weight 0 change nothing."""
        for task in self._tasks.values():
            task.update(outputs)
        self._samples += (outputs.weights > 0).sum()

    def calibration_curves(self) -> dict[str, dict[str, list[float]]]:
        """Returns the `calibration_curve` of each task with a metric of ordered samples; called after `compute`."""
        return {name: found for name, task in self._tasks.items() if (found := task.calibration_curve())}

    def compute(self, context: DistributedContext) -> dict[str, float]:
        """Returns the metrics over all ranks' samples; with several tasks, each name is followed by `/TASK`."""
        found: dict[str, float] = {}
        for name, task in self._tasks.items():
            suffix = f"/{name}" if len(self._tasks) > 1 else ""
            found |= {f"{metric}{suffix}": value for metric, value in task.compute(context).items()}
        return found | {"samples": sum_over_ranks(self._samples, context).item()}


class _TaskMetrics:
    """The metrics of one task and their accumulators, by name."""

    def __init__(self, name: str, config: Config, device: torch.device, items: ItemVectors | None) -> None:
        self._task, self._data, self._items = config.named_tasks()[name], config.data, items
        self._accumulators: dict[str, Accumulator] = {}
        self._totals: dict[str, Any] = {}
        self._functions: dict[str, tuple[str, Callable[[Any], dict[str, float]]]] = {}
        key, metrics = metrics_of(name, config)
        for metric in metrics:
            if found := built_in(metric, prediction_kind(self._task)):
                self._add_built_in(metric, *found, config.evaluate.group_sample, device)
            else:
                own = self._accumulators[metric] = own_metric(key, metric)(device)
                self._functions[result_name(metric)] = metric, own.compute

    def _add_built_in(
        self, metric: str, entry: BuiltIn, numbers: tuple[float, ...], group_sample: float, device: torch.device
    ) -> None:
        source = entry.accumulator
        if source not in self._accumulators:
            options = [group_sample] if entry.grouped else [self._items] if entry.over_items else []
            self._accumulators[source] = find_by_name("evaluate.metrics", source, {})(device, *options)
        function = find_by_name("evaluate.metrics", entry.function, {})
        self._functions[metric] = source, lambda total: function(total, *numbers)

    def update(self, outputs: BatchOutputs) -> None:
        """Adds samples."""
        if self._accumulators:
            samples = _samples(outputs, self._task, self._data)
            for accumulator in self._accumulators.values():
                accumulator.add(samples)

    def compute(self, context: DistributedContext) -> dict[str, float]:
        """Returns the metrics over all ranks' samples."""
        self._totals = {name: accumulator.total(context) for name, accumulator in self._accumulators.items()}
        return {
            f"{metric}{part}": value
            for metric, (source, function) in self._functions.items()
            for part, value in function(self._totals[source]).items()
        }

    def calibration_curve(self) -> dict[str, list[float]] | None:
        """Returns the curve; None without a metric of ordered samples."""
        ordered = next((one for one in self._totals.values() if isinstance(one, OrderedWeights)), None)
        return calibration_curve(ordered) if ordered else None


def predictions_of_items(config: Config) -> list[str]:
    """Returns the predictions whose vectors of all items the metrics need."""
    return [
        str(task.prediction)
        for name, task in config.named_tasks().items()
        if any(
            found and found[0].over_items
            for found in (built_in(metric, prediction_kind(task)) for metric in metrics_of(name, config)[1])
        )
    ]


def _samples(outputs: BatchOutputs, task: TaskConfig, data: DataConfig) -> Samples:
    """Returns the samples of a task, weighted as in its loss."""
    labels, item = data.labels, data.catalogue.id
    scores = outputs.predictions[str(task.prediction)]
    if prediction_kind(task) == "probability" and scores.dim() == 2:
        scores = scores[:, 1] - scores[:, 0]  # a score for each of the two classes, whose logit is their difference
    return Samples(
        predictions=_meant(scores.double(), task.output),
        labels=outputs.labels[:, labels.index(str(task.label))].double(),
        weights=outputs.weights.double() * subspace_factor(task, labels, outputs.labels),
        scores=scores,
        groups=outputs.groups[:, data.groups.index(task.group)] if task.group is not None else None,
        items=outputs.groups[:, data.groups.index(item)] if item is not None else None,
        sparse=outputs.sparse,
    )


def _meant(scores: Tensor, output: Output | None) -> Tensor:
    """Returns the logits of log-probabilities, the values of their logarithms, and other predictions as they are.

    Log-probabilities of 0 and minus infinity are taken as the nearest other float32.
    """
    if output == "log_probability":
        return to_logit(scores.clamp(FLOAT32.min, -FLOAT32.tiny))
    return scores.exp() if output == "log_value" else scores
