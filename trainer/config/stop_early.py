"""Configuration of early stopping."""

from typing import Annotated, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section


class StopEarlyConfig(Section):
    """Early stopping: an end of training once a metric of data.validation gets no better."""

    # All keys may change on resume: they decide when training ends, and no loss until then.
    metric: Annotated[str | None, MayChange] = None
    """Metric of the evaluations to watch, followed by /TASK if several. Unset: train to the last step."""
    patience: Annotated[pydantic.PositiveInt, MayChange] = 3
    """Stop after so many evaluations in a row that are no better than the best one before."""
    min_change: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """An evaluation is better if it is so by more than this."""
    target: Annotated[float | None, MayChange] = None
    """Stop as soon as an evaluation is at least as good as this. Unset: there is no such value."""

    @pydantic.model_validator(mode="after")
    def _belongs_to_a_metric(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if self.metric is None and given:
            key = f"train.stop_early.{min(given)}"
            raise InputError(f"{key} is set, but train.stop_early.metric is not; set both or none")
        return self
