"""Configuration of the optimizer of all weights but the embedding tables."""

from typing import Annotated, Any, Self

import pydantic

from trainer.config.schedule import PartSchedule, Schedule
from trainer.config.table_optim import Beta
from trainer.core.errors import InputError, nearest
from trainer.core.section import MayChange, Section

BETAS = ("beta1", "beta2")
# The names of DENSE in trainer/optim, which cannot be imported without torch, each with its options besides learning
# rate and weight decay.
DENSE_OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "nesterov", "fused"),
    "adagrad": ("eps", "fused"),
    "adadelta": ("eps", "rho"),
    "rmsprop": ("eps", "alpha", "momentum"),
    "adam": ("eps", *BETAS, "amsgrad", "fused"),
    "adamw": ("eps", *BETAS, "amsgrad", "fused"),
    "adamax": ("eps", *BETAS),
    "radam": ("eps", *BETAS),
}
OPTIONS = sorted({option for options in DENSE_OPTIONS.values() for option in options})


def _known(name: str) -> str:
    if name not in DENSE_OPTIONS and ":" not in name:
        raise InputError(f"{{key}} is '{name}'{nearest(name, DENSE_OPTIONS, 'name your own as package.module:Class')}")
    return name


class DensePart(Section):
    """A parameter group: dense weights with their own learning rate, weight decay or schedule."""

    weights: list[str] = pydantic.Field(min_length=1)
    """Names, or patterns with *. A weight that several groups name belongs to the first of them."""
    learning_rate: pydantic.NonNegativeFloat | None = None
    """Learning rate before the schedule's multiplier. Unset: optimizer.dense.learning_rate."""
    weight_decay: pydantic.NonNegativeFloat | None = None
    """Weight decay. Unset: optimizer.dense.weight_decay."""
    schedule: PartSchedule = PartSchedule()
    """Learning-rate schedule."""


class DenseOptimizerConfig(Section):
    """The optimizer of all weights but the embedding tables."""

    name: Annotated[str, pydantic.AfterValidator(_known)] = "adagrad"
    """sgd, adagrad, adadelta, rmsprop, adam, adamw, adamax, radam, or package.module:Class for your own."""
    arguments: dict[str, Any] = {}
    """Options of an optimizer of your own, besides its learning rate and weight decay."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Learning rate before the schedule's multiplier."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators. sgd has none; adadelta needs a larger one, such as 1e-6."""
    momentum: pydantic.NonNegativeFloat = 0.0
    """Momentum of sgd and rmsprop."""
    nesterov: bool = False
    """Nesterov's form of the momentum of sgd."""
    beta1: Beta = 0.9
    """Decay of the first moment, for adam, adamw, adamax and radam."""
    beta2: Beta = 0.999
    """Decay of the second moment, or of adamax's maximum, for the same optimizers."""
    amsgrad: bool = False
    """Let adam and adamw divide by the largest second moment so far."""
    alpha: Beta = 0.99
    """Decay of the squared gradient, for rmsprop."""
    rho: Beta = 0.95
    """Decay of the squared gradient and of the squared update, for adadelta."""
    fused: Annotated[bool, MayChange] = False
    """Update all weights in one kernel, which is faster and rounds differently. For sgd, adagrad, adam and adamw."""
    weight_decay: pydantic.NonNegativeFloat = 0.0
    """L2 penalty, added to the gradient; adamw shrinks the weights themselves."""
    max_norm: pydantic.PositiveFloat | None = None
    """Scale all gradients down together if their norm is greater than this. Unset: no limit."""
    norm_type: pydantic.PositiveFloat = 2.0
    """Which p-norm max_norm limits."""
    max_value: pydantic.PositiveFloat | None = None
    """Clamp each value of a gradient to this size. Unset: no limit."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule."""
    parts: dict[str, DensePart] = {}
    """Parameter groups by name; a weight belongs to the first group that names it."""
    frozen: list[str] = []
    """Weights that are not trained: names, or patterns with *."""

    @pydantic.model_validator(mode="after")
    def _options_are_used(self) -> Self:
        given = self.model_dump(exclude_defaults=True, include={*OPTIONS, "arguments"})
        unused = sorted(given.keys() - set(DENSE_OPTIONS.get(self.name, ("arguments",))))
        if unused:
            users = ", ".join(name for name, options in DENSE_OPTIONS.items() if unused[0] in options)
            instead = "optimizer.dense.arguments" if ":" in self.name else users or "package.module:Class"
            raise InputError(
                f"optimizer.dense.{unused[0]} is {given[unused[0]]!r}, which optimizer.dense.name '{self.name}' does "
                f"not have; use {instead} or leave it out"
            )
        if self.nesterov and not self.momentum:
            raise InputError("optimizer.dense.nesterov is true, but optimizer.dense.momentum is 0.0; set a momentum")
        return self

    @pydantic.model_validator(mode="after")
    def _clips_in_one_way(self) -> Self:
        if self.max_norm is not None and self.max_value is not None:
            raise InputError(
                f"optimizer.dense.max_norm is {self.max_norm} and optimizer.dense.max_value is {self.max_value}; "
                "set one of them"
            )
        if self.norm_type != 2 and self.max_norm is None:
            raise InputError(
                f"optimizer.dense.norm_type is {self.norm_type}, but optimizer.dense.max_norm is unset; set both"
            )
        return self
