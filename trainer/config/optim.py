"""Configuration of optimizers and of their learning-rate schedules."""

from typing import Annotated, Literal, Self

import pydantic

from trainer.config.section import Section
from trainer.core.errors import InputError

SparseName = Literal[
    "sgd", "adagrad", "rowwise_adagrad", "adam", "lamb", "lars_sgd", "partial_rowwise_adam", "partial_rowwise_lamb"
]
DenseName = Literal["sgd", "adagrad", "adam", "adamw"]
Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


class Schedule(Section):
    """How the learning rate changes: a linear warm-up, then constant or a decay."""

    warmup_steps: pydantic.NonNegativeInt = 0
    """Steps over which the rate rises linearly to its full value, which it reaches at this step."""
    decay: str = "constant"
    """What follows: constant stays, linear falls to end_multiplier; or package.module:function for your own."""
    decay_start: pydantic.NonNegativeInt = 0
    """Last step at the full value, if later than the warm-up."""
    decay_steps: pydantic.PositiveInt = 1
    """Steps that the decay takes."""
    end_multiplier: pydantic.NonNegativeFloat = 0.0
    """What part of the full value is left at the end of the decay."""


class SparseOptimizerConfig(Section):
    """The optimizer of the embedding tables, fused into backward by FBGEMM."""

    name: SparseName = "rowwise_adagrad"
    """A CPU has sgd, adagrad and rowwise_adagrad. Replicated tables can use these three, too."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Step size before the schedule."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators; sgd and lars_sgd have none."""
    beta1: Beta = 0.9
    """Decay of the first moment, for Adam and LAMB."""
    beta2: Beta = 0.999
    """Decay of the second moment, for Adam and LAMB."""
    schedule: Schedule = Schedule()
    """How the learning rate changes."""


class DenseOptimizerConfig(Section):
    """The optimizer of everything that is not an embedding table."""

    name: DenseName = "adagrad"
    """Of torch.optim."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Step size before the schedule."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators; sgd has none."""
    momentum: pydantic.NonNegativeFloat = 0.0
    """For sgd."""
    beta1: Beta = 0.9
    """Decay of the first moment, for adam and adamw."""
    beta2: Beta = 0.999
    """Decay of the second moment, for adam and adamw."""
    weight_decay: pydantic.NonNegativeFloat = 0.0
    """L2 penalty, added to the gradient; adamw shrinks the weights themselves."""
    schedule: Schedule = Schedule()
    """How the learning rate changes."""

    @pydantic.model_validator(mode="after")
    def _momentum_is_used(self) -> Self:
        if self.momentum and self.name != "sgd":
            raise InputError(
                f"optimizer.dense.momentum is {self.momentum}, which optimizer.dense.name '{self.name}' does not have; "
                "use sgd or leave it out"
            )
        return self


class OptimizerConfig(Section):
    """How weights are updated."""

    sparse: SparseOptimizerConfig = SparseOptimizerConfig()
    dense: DenseOptimizerConfig = DenseOptimizerConfig()
