"""Configuration of averaged weights."""

from typing import Annotated, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section

Decay = Annotated[float, pydantic.Field(gt=0, lt=1)]


class AverageConfig(Section):
    """Exponential moving averages (EMA) of the weights, kept beside those that are trained."""

    decay: Decay | None = None
    """Part of an average that stays in a step, such as 0.999. Unset: there are no averages."""
    tables: bool = False
    """Average embedding tables, too, which takes their memory once more, with evaluate twice. Off: other weights."""
    evaluate: Annotated[bool, MayChange] = True
    """Evaluate the averages. Off: the weights that are trained."""

    @pydantic.model_validator(mode="after")
    def _belongs_to_a_decay(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if self.decay is None and given:
            raise InputError(f"optimizer.ema.{min(given)} is set, but optimizer.ema.decay is not; set both or none")
        return self
