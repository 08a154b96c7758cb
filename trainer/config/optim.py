"""Configuration of optimizers and of their learning-rate schedules."""

from typing import Annotated, Literal, Self

import pydantic

from trainer.config.section import Section
from trainer.core.errors import InputError

# The names of TABLE_OPTIMIZERS and DENSE in trainer/optim, which cannot be imported without torch.
SparseName = Literal[
    "sgd", "adagrad", "rowwise_adagrad", "adam", "lamb", "lars_sgd", "partial_rowwise_adam", "partial_rowwise_lamb"
]
DenseName = Literal["sgd", "adagrad", "adam", "adamw"]
Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


class Schedule(Section):
    """Learning-rate schedule: a linear warm-up, then constant or a decay."""

    warmup_steps: pydantic.NonNegativeInt = 0
    """Steps of the linear warm-up; the last of them has the full rate."""
    decay: str = "constant"
    """After the warm-up: constant, linear to end_multiplier, or package.module:function for your own."""
    decay_start: pydantic.NonNegativeInt = 0
    """Last step at the full rate, if later than the warm-up."""
    decay_steps: pydantic.PositiveInt = 1
    """Length of the decay in steps."""
    end_multiplier: pydantic.NonNegativeFloat = 0.0
    """Learning-rate multiplier after the decay."""


class SparseOptimizerConfig(Section):
    """The optimizer of the embedding tables, fused into backward by FBGEMM."""

    name: SparseName = "rowwise_adagrad"
    """On a CPU and for replicated tables: sgd, adagrad or rowwise_adagrad."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Learning rate before the schedule's multiplier."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators; sgd and lars_sgd have none."""
    beta1: Beta = 0.9
    """Decay of the first moment, for Adam and LAMB."""
    beta2: Beta = 0.999
    """Decay of the second moment, for Adam and LAMB."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule."""


class DenseOptimizerConfig(Section):
    """The optimizer of all weights but the embedding tables."""

    name: DenseName = "adagrad"
    """An optimizer of torch.optim."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Learning rate before the schedule's multiplier."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators; sgd has none."""
    momentum: pydantic.NonNegativeFloat = 0.0
    """Momentum of sgd."""
    beta1: Beta = 0.9
    """Decay of the first moment, for adam and adamw."""
    beta2: Beta = 0.999
    """Decay of the second moment, for adam and adamw."""
    weight_decay: pydantic.NonNegativeFloat = 0.0
    """L2 penalty, added to the gradient; adamw shrinks the weights themselves."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule."""

    @pydantic.model_validator(mode="after")
    def _momentum_is_used(self) -> Self:
        if self.momentum and self.name != "sgd":
            raise InputError(
                f"optimizer.dense.momentum is {self.momentum}, which optimizer.dense.name '{self.name}' does not have; "
                "use sgd or leave it out"
            )
        return self


class OptimizerConfig(Section):
    """The optimizers of the embedding tables and of all other weights."""

    sparse: SparseOptimizerConfig = SparseOptimizerConfig()
    dense: DenseOptimizerConfig = DenseOptimizerConfig()
