"""Configuration of the tasks: what a model is trained to predict, and how each prediction is judged."""

from typing import Annotated, Literal

import pydantic

from trainer.config.may_change import MayChange
from trainer.config.section import Section

Output = Literal["logit", "log_probability", "value", "vectors"]


class Where(Section):
    """The samples that a task is trained on."""

    column: str | None = None
    """A label column; samples where it is 0 are outside. Unset: no sample is."""
    outside: pydantic.NonNegativeFloat = 0.0
    """Factor of the weight of samples outside."""


class TaskConfig(Section):
    """One task, by its name; without any, every label is a binary task with model.loss."""

    label: str | None = None
    """Column of data.labels to learn. Unset: the task's own name."""
    prediction: str | None = None
    """Name of the model's prediction to judge. Unset: the task's own name."""
    loss: str = "binary"
    """Its loss; package.module:function for one of your own (see docs/models.md)."""
    output: Output = "logit"
    """Meaning of its prediction: a logit, the logarithm of a probability, a value, or a pair of vectors."""
    weight: pydantic.NonNegativeFloat = 1.0
    """Factor of its loss in the sum over the tasks."""
    where: Where = Where()
    """The samples that it is trained on."""
    group: str | None = None
    """Column of data.groups, for losses and metrics within groups of samples."""
    metrics: Annotated[list[str] | None, MayChange] = None
    """Its metrics. Unset: evaluate.metrics."""
