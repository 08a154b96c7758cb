"""The tasks of a model: its predictions, their losses, and the one loss that training minimizes."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.fx._symbolic_trace import is_fx_symbolic_tracing

from trainer.batches.batch import Batch
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.config.tasks import WITH_NEGATIVES, TaskConfig
from trainer.core.errors import InputError, some_of
from trainer.core.registry import find_by_name
from trainer.models.base import BatchOutputs, Predictions
from trainer.models.had_items import HadItems
from trainer.models.losses import (
    LOSSES,
    LOSSES_OVER_SAMPLES,
    EarlierPairs,
    LossOverSamples,
    are_classes,
    side_by_side,
    to_logit,
    total,
)
from trainer.models.outputs import by_name, model_outputs
from trainer.models.precision import autocast
from trainer.models.sequence_model import EARLIER_PAIRS, ROWS_OF_ITEMS
from trainer.models.weighting import WEIGHTINGS


class TaskLoss:
    """The loss of one task.

    Args:
        key: Key of its section, for messages.
        task: The task, label, prediction and output set.
        data: The data.
        samples_per_lane: Samples of a lane in a step.

    Raises:
        InputError: Its loss cannot be imported.
    """

    def __init__(self, key: str, task: TaskConfig, data: DataConfig, samples_per_lane: int) -> None:
        self._key, self._task, self._labels = key, task, data.labels
        self._label = data.labels.index(str(task.label))
        self._group = data.groups.index(task.group) if task.group else None
        loss = find_by_name(f"{key}.loss", task.loss, LOSSES | LOSSES_OVER_SAMPLES)
        options = {option: getattr(task, option) for option in task.kind.options if option != "across"}
        rows = data.catalogue.lane_rows(samples_per_lane)
        if task.loss == "sampled_softmax":
            options["rows"] = rows
        self._loss = partial(loss, **options)
        self._over_samples = None
        if task.compares_samples:
            self._over_samples = LossOverSamples(self._loss, rows.total if task.across == "lane" else None)
        excludes = data.catalogue.negatives_not_in and task.loss in WITH_NEGATIVES
        self.had = HadItems(data) if excludes else None
        self.is_across_ranks = task.compares_samples and task.across != "lane"
        self.checks_labels = task.loss in ("softmax", "poisson")

    def __call__(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Returns the loss of each sample, `[B]`, times the task's weights."""
        prediction, label = self._prediction(predictions), batch.labels[:, self._label]
        factor = subspace_factor(self._task, self._labels, batch.labels)
        if self._over_samples:
            group, options = None if self._group is None else batch.groups[:, self._group], {}
            if (rows := predictions.get(ROWS_OF_ITEMS)) is not None:
                group, options["earlier"] = rows[:, 0], EarlierPairs(predictions[EARLIER_PAIRS], rows[:, 1:])
            if self.had:
                options["had"] = self.had.of(batch.sparse, are_rows=rows is not None)
            each = self._over_samples(prediction, label, group, batch.weights * factor > 0, batch.log_q, **options)
        else:
            each = self._loss(prediction, label)
        if each.shape != label.shape:
            raise InputError(f"{self._key}.loss gives {list(each.shape)}; it must give [B], here {list(label.shape)}")
        return each * (factor * self._task.weight)

    def check_labels(self, predictions: Predictions, batch: Batch) -> None:
        """Refuses labels that are not class numbers, or counts below 0; on a GPU the loss of such a sample is NaN.

        Raises:
            InputError: The message names the label and its value.
        """
        if not self.checks_labels or not batch.labels.numel():
            return
        if batch.labels.is_cuda:  # it would have to be waited for in every step
            return
        label = batch.labels[:, self._label]
        if self._task.loss == "poisson":
            wrong, why = label[label < 0], "the loss 'poisson' takes labels from 0 up; correct the data"
        else:
            classes = self._prediction(predictions).shape[1]
            wrong = label[~are_classes(label, classes)]
            why = (
                f"the model gives {classes} classes for '{self._task.prediction}', whose numbers are 0 to "
                f"{classes - 1}; correct the data, or give the model more classes"
            )
        if len(wrong):
            raise InputError(
                f"{self._key}.label is '{self._task.label}', a column with the value {wrong[0].item():g}, but {why}"
            )

    def _prediction(self, predictions: Predictions) -> Tensor:
        task, name = self._task, str(self._task.prediction)
        if name not in predictions:
            raise InputError(
                f"{self._key}.prediction is '{name}', which the model does not give; it gives {some_of(predictions)}"
            )
        kind, shape = task.kind, predictions[name].shape[1:]
        if not kind.takes(shape):
            raise InputError(
                f"{self._key}.loss is '{task.loss}', which takes predictions {_shown(kind.shape)}, but the model gives "
                f"{_shown(shape)} for '{name}'; use another loss or change the model"
            )
        is_log = task.output == "log_probability" and task.loss in LOSSES
        return to_logit(predictions[name]) if is_log else predictions[name]


def subspace_factor(task: TaskConfig, names: list[str], labels: Tensor) -> Tensor | float:
    """Returns the factor of the samples' weights inside and outside a task's subspace, `[B]`; 1 without a subspace.

    Args:
        task: The task.
        names: Names of the labels.
        labels: `[B, L]`.
    """
    if task.where.column is None:
        return 1.0
    column = labels[:, names.index(task.where.column)]
    return torch.ones_like(column).where(column != 0, task.where.outside)


def _shown(shape: Sequence[str | int] | None) -> str:
    return f"[{', '.join(map(str, ('B', *(shape or ()))))}]"


class LossOfAllLabels:
    """The loss of a configuration without tasks over all labels at once: a user's own, or the sum of binary ones.

    The sum equals the loss of a task for each label, except for the last bit: torch rounds the end of a tensor
    differently.

    Args:
        config: The configuration.

    Raises:
        InputError: The user's own cannot be imported.
    """

    def __init__(self, config: Config) -> None:
        self._names = config.data.labels
        self._loss: JointLoss = find_by_name("model.loss", config.model.loss, {"binary": _sum_of_binary})

    def __call__(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Returns the loss of each sample, `[B]`."""
        columns = [predictions[name] for name in self._names]
        # The user's own loss may change its argument, and must not change the predictions by that.
        logits = side_by_side(columns) if self._loss is _sum_of_binary else torch.stack(columns, dim=1)
        return self._loss(logits, batch.labels)


JointLoss = Callable[[Tensor, Tensor], Tensor]
"""Returns the loss of each sample, `[B]`, from logits and labels, `[B, T]` float32 each."""


def _sum_of_binary(logits: Tensor, labels: Tensor) -> Tensor:
    return total(LOSSES["binary"](logits, labels))


class TaskLosses(nn.Module):
    """The weighted losses of all tasks, scaled so that ranks can average their gradients.

    A module of its own, as TorchRec's pipeline traces the model down to modules without tables, and a trace must not
    branch.

    Args:
        config: The configuration.
        device: Device of the parameters.
        samples_per_lane: Samples of a lane in a step, which only training needs.
    """

    def __init__(self, config: Config, device: torch.device, samples_per_lane: int = 0) -> None:
        super().__init__()
        tasks = config.named_tasks()
        self._outputs = model_outputs(config)
        self._losses = (
            [LossOfAllLabels(config)]
            if config.has_joint_loss
            else [
                TaskLoss(f"tasks.{name}" if config.tasks else "model", task, config.data, samples_per_lane)
                for name, task in tasks.items()
            ]
        )
        rule = WEIGHTINGS[config.model.task_weighting]
        self.weighting = rule(len(tasks), config.train.micro_batches, device)

    def forward(self, output: Tensor | Predictions, batch: Batch) -> tuple[Tensor, BatchOutputs]:
        """Computes the loss of the local batch, whose mean over the ranks is the loss of the global batch.

        The loss of the global batch is the sum of its samples' losses, each times its weight, over the number of
        samples. In evaluation the loss is 0: nothing uses it, and an evaluation has no lanes.
        """
        predictions = self.named(output)
        for task_loss in self._losses:
            if isinstance(task_loss, TaskLoss):
                task_loss.check_labels(predictions, batch)
        loss = self.of(predictions, batch) if self.training else torch.zeros_like(batch.scale)
        detached = {name: prediction.detach() for name, prediction in predictions.items()}
        sparse = None if self.training else batch.sparse
        return loss, BatchOutputs(loss.detach(), detached, batch.labels, batch.weights, batch.groups, sparse)

    @property
    def is_function(self) -> bool:
        """Whether the loss is a function of this rank's tensors alone: it checks no values, and needs no other rank.

        Nor may sizes within it depend on values, as those of items that samples have had do.
        """
        return not self.weighting.needs_gradients and not any(
            isinstance(loss, TaskLoss) and (loss.checks_labels or loss.is_across_ranks or loss.had)
            for loss in self._losses
        )

    def of(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Returns the loss of the local batch, whose labels are not looked at."""
        each = side_by_side([loss(predictions, batch) for loss in self._losses])
        return self.weighting(each, batch.weights, batch.scale)

    def named(self, output: Tensor | Predictions) -> Predictions:
        """Returns a model's output by the names of the predictions, as float32."""
        return by_name(self._outputs, output)


# TorchRec's DLRMTrain takes one label and no weights. It takes the mean over the local batch, so a rank with a padded
# batch would give its samples more weight.
class ModelWithLoss(nn.Module):
    """A model and the losses of its tasks.

    Args:
        model: Gives predictions for dense features `[B, D]` and sparse features.
        losses: The losses of the tasks.
        device_type: Type of the device, such as cuda.
        dtype: Precision that the model computes in, None for the parameters' own; parameters and the loss stay float32.
    """

    def __init__(self, model: nn.Module, losses: TaskLosses, device_type: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.model, self.losses = model, losses
        self.with_gradients: Callable[[Batch], tuple[Tensor, BatchOutputs]] | None = None
        self._device_type, self._dtype = device_type, dtype

    def forward(self, batch: Batch) -> tuple[Tensor, BatchOutputs]:
        """Computes the loss of the local batch and the model's outputs."""
        if self.with_gradients and self.training and torch.is_grad_enabled() and not is_fx_symbolic_tracing():
            return self.with_gradients(batch)
        return self.losses(self.predict(batch), batch)

    def predict(self, batch: Batch) -> Tensor | Predictions:
        """Returns the model's output for a batch."""
        with autocast(self._device_type, self._dtype):
            return self.model(batch.dense, batch.sparse)
