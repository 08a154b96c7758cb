"""Configuration of the tasks: what a model is trained to predict, and by which loss and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, get_args

import pydantic

from trainer.config.data import DataConfig
from trainer.core.errors import OWN, InputError, nearest, some_of
from trainer.core.section import MayChange, Section

Output = Literal["logit", "log_probability", "value", "log_value", "vectors"]


@dataclass(frozen=True)
class LossKind:
    """Requirements of a loss on its task.

    Attributes:
        outputs: Allowed meanings of its prediction; the first is the default.
        shape: Dimensions of its prediction after the first, which is `B`: letters, or numbers where they are fixed;
            None for any.
        options: The task's keys that only some losses have.
        numeric: Whether its label may be one of data.numeric_labels.
        grouped: Whether it needs groups.
    """

    outputs: tuple[Output, ...]
    shape: tuple[str | int, ...] | None = ()
    options: tuple[str, ...] = ()
    numeric: bool = False
    grouped: bool = False

    def takes(self, shape: Sequence[int]) -> bool:
        """Returns whether the loss takes predictions whose dimensions after the first are `shape`."""
        if self.shape is None:
            return True
        fixed = [size if isinstance(wanted, str) else wanted for wanted, size in zip(self.shape, shape, strict=False)]
        return len(shape) == len(self.shape) and fixed == list(shape)


# The names of LOSSES and LOSSES_OVER_SAMPLES in trainer/models, which cannot be imported without torch.
LOSS_KINDS = {
    "binary": LossKind(("logit", "log_probability"), options=("label_smoothing",)),
    "focal": LossKind(("logit", "log_probability"), options=("gamma", "alpha")),
    "softmax": LossKind(("logit",), ("C",), ("label_smoothing",), numeric=True),
    "squared": LossKind(("value",), numeric=True),
    "absolute": LossKind(("value",), numeric=True),
    "huber": LossKind(("value",), options=("delta",), numeric=True),
    "poisson": LossKind(("log_value",), numeric=True),
    "jrc": LossKind(("logit",), (2,), ("alpha", "across"), grouped=True),
    "bpr": LossKind(("logit", "value"), (), ("across",), numeric=True, grouped=True),
    "in_batch_softmax": LossKind(("vectors",), (2, "D"), ("temperature", "log_q", "across")),
    "sampled_softmax": LossKind(("vectors",), (2, "D"), ("temperature", "log_q", "across"), grouped=True),
}
WITH_NEGATIVES = ("in_batch_softmax", "sampled_softmax")
OWN_LOSS = LossKind(get_args(Output), None, numeric=True)
OPTIONS = sorted({option for kind in LOSS_KINDS.values() for option in kind.options})


class Where(Section):
    """The samples that a task is trained on."""

    column: str | None = None
    """A label column; samples where the label is 0 are outside. Unset: no sample is outside."""
    outside: pydantic.NonNegativeFloat = 0.0
    """Factor of the weight of samples outside."""


class TaskConfig(Section):
    """One task, by its name; without any, every label is a task with model.loss."""

    label: str | None = None
    """Column of data.labels to learn. Unset: the task's own name."""
    prediction: str | None = None
    """Name of the model's prediction. Unset: the task's own name."""
    loss: str = "binary"
    """Its loss (see docs/guides/tasks.md); package.module:function for one of your own."""
    output: Output | None = None
    """Meaning of its prediction: logit, log_probability, value, log_value (the logarithm of a value), or a pair of
    vectors. Unset: as the loss takes it."""
    label_smoothing: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Fraction of every label that binary and softmax spread evenly over the classes."""
    gamma: pydantic.NonNegativeFloat = 2.0
    """Exponent by which focal lowers the weight of samples that are predicted well."""
    alpha: float = pydantic.Field(default=0.5, ge=0, le=1)
    """In focal, the weight of positives; negatives weigh 1 - alpha. In jrc, the weight of calibration."""
    mean: float = 0.0
    """Of an output value or log_value: the prediction is the model's output times std, plus this. Set both as the
    label, or its logarithm, has them."""
    std: pydantic.PositiveFloat = 1.0
    """See mean. A weight of 1 / std^2 beside it brings a squared loss to about 1, whatever the label's unit."""
    delta: pydantic.PositiveFloat = 1.0
    """Error up to which huber is quadratic."""
    temperature: pydantic.PositiveFloat = 1.0
    """Divides the inner products of in_batch_softmax and sampled_softmax."""
    log_q: bool = False
    """Correct them for how often each negative is expected, by the weights of data.catalogue."""
    across: Literal["lane", "batch"] = "lane"
    """Samples that jrc, bpr and both softmax of vectors compare: of a lane in a step, or of the whole global batch."""
    weight: pydantic.NonNegativeFloat = 1.0
    """Factor of its loss in the sum over the tasks."""
    where: Where = Where()
    """The samples that the task is trained on."""
    group: str | None = None
    """Column of data.groups, for losses and metrics within groups of samples; for losses of vectors, the item's id."""
    metrics: Annotated[list[str] | None, MayChange] = None
    """Its metrics. Unset: evaluate.metrics."""

    @property
    def kind(self) -> LossKind:
        """The requirements of its loss."""
        return LOSS_KINDS.get(self.loss, OWN_LOSS)

    @property
    def compares_samples(self) -> bool:
        """Whether its loss of a sample depends on other samples."""
        return "across" in self.kind.options

    def named(self, name: str) -> Self:
        """Returns the task with label, prediction and output set.

        Args:
            name: Its name.
        """
        unset = {"label": name, "prediction": name, "output": self.kind.outputs[0]}
        return self.model_copy(update={key: getattr(self, key) or value for key, value in unset.items()})


def check_task(key: str, task: TaskConfig, data: DataConfig) -> None:
    """Refuses a task whose loss is unknown, or does not suit its other keys.

    Args:
        key: The section's key, for messages.
        task: The task, with label and output set.
        data: The data.

    Raises:
        InputError: The message names the key.
    """
    if task.loss not in LOSS_KINDS and ":" not in task.loss:
        raise InputError(f"{key}.loss is '{task.loss}'{nearest(task.loss, LOSS_KINDS, OWN)}")
    if data.balance.is_on and task.compares_samples and task.across == "lane":
        by = f"cost is '{data.balance.cost}'" if data.balance.cost else f"features is {data.balance.features}"
        raise InputError(
            f"{key}.loss is '{task.loss}', which compares the samples of a lane, but data.balance.{by}, which deals "
            f"them to several ranks; set {key}.across to 'batch', or leave data.balance out"
        )
    _check_columns(key, task, data)
    _check_options(key, task)
    if task.output not in task.kind.outputs:
        raise InputError(
            f"{key}.output is '{task.output}', but the loss '{task.loss}' takes a {' or '.join(task.kind.outputs)}; "
            "leave it out or use another loss"
        )
    if task.label in data.numeric_labels and not task.kind.numeric:
        takers = ", ".join(name for name, kind in LOSS_KINDS.items() if kind.numeric)
        raise InputError(
            f"{key}.loss is '{task.loss}', but its label '{task.label}' is in data.numeric_labels, and the loss takes "
            f"labels in [0, 1]; use one of {takers}"
        )
    if task.kind.grouped and task.group is None:
        raise InputError(
            f"{key}.loss is '{task.loss}', which compares the samples of a group, but no group is set; name a column "
            "of data.groups in the task's group"
        )
    _check_scale(key, task)
    _check_vectors(key, task, data)


def _check_columns(key: str, task: TaskConfig, data: DataConfig) -> None:
    named = [
        ("label", task.label, "labels"),
        ("where.column", task.where.column, "labels"),
        ("group", task.group, "groups"),
    ]
    for field, column, kind in named:
        known = getattr(data, kind)
        if column is not None and column not in known:
            raise InputError(f"{key}.{field} is '{column}', which data.{kind} does not name; it has: {some_of(known)}")
    if task.where.outside and task.where.column is None:
        raise InputError(f"{key}.where.outside is {task.where.outside:g}, but {key}.where.column is unset; set both")


def _check_options(key: str, task: TaskConfig) -> None:
    given = task.model_dump(exclude_defaults=True, include={*OPTIONS})
    for option in sorted(given.keys() - {*task.kind.options}):
        having = ", ".join(name for name, kind in LOSS_KINDS.items() if option in kind.options)
        raise InputError(
            f"{key}.{option} is {given[option]!r}, which the loss '{task.loss}' does not have; leave it out, or use "
            f"one of {having}"
        )


def _check_scale(key: str, task: TaskConfig) -> None:
    if (task.mean, task.std) != (0.0, 1.0) and task.output not in ("value", "log_value"):
        raise InputError(
            f"{key}.mean is {task.mean:g} and {key}.std is {task.std:g}, but its prediction is a {task.output}, which "
            "has no unit; leave them out, or use a loss of values"
        )


def _check_vectors(key: str, task: TaskConfig, data: DataConfig) -> None:
    sampled, catalogue = task.loss == "sampled_softmax", data.catalogue
    if not (sampled or task.log_q):
        return
    needs = f"{key}.loss is 'sampled_softmax'" if sampled else f"{key}.log_q is true"
    if not catalogue.items:
        raise InputError(f"{needs}, which needs a catalogue, but data.catalogue.items is empty; name its files")
    if task.group != catalogue.id:
        raise InputError(
            f"{needs}, which needs the item of each sample, but {key}.group is {task.group!r}; set it to "
            f"data.catalogue.id, '{catalogue.id}'"
        )
    if sampled and not (catalogue.negatives or catalogue.hard_negatives):
        raise InputError(
            f"{needs}, but there are no negatives: data.catalogue.negatives is 0 and data.catalogue.hard_negatives "
            "unset; set one of them"
        )
