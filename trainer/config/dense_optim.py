"""Configuration of the optimizer of all weights but the embedding tables."""

from typing import Literal, Self

import pydantic

from trainer.config.schedule import Schedule
from trainer.config.section import Section
from trainer.config.table_optim import Beta
from trainer.core.errors import InputError

# The names of DENSE in trainer/optim, which cannot be imported without torch.
DenseName = Literal["sgd", "adagrad", "adam", "adamw"]


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
