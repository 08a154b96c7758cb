"""Configuration of the optimizer of the embedding tables."""

from typing import Annotated, Literal

import pydantic

from trainer.config.schedule import Schedule
from trainer.config.section import Section

# The names of TABLE_OPTIMIZERS in trainer/optim, which cannot be imported without torch.
SparseName = Literal[
    "sgd", "adagrad", "rowwise_adagrad", "adam", "lamb", "lars_sgd", "partial_rowwise_adam", "partial_rowwise_lamb"
]
Beta = Annotated[float, pydantic.Field(ge=0, lt=1)]


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
    max_gradient: pydantic.PositiveFloat | None = None
    """Clamp each value of the gradient of a pooled embedding to this size. Unset: no limit."""
    schedule: Schedule = Schedule()
    """Learning-rate schedule."""
