"""Configuration of what must hold before a model of a run over segments is exported."""

from typing import Annotated, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section

IN_WINDOW = ("metric", "label_rate_by", "least_samples", "most_samples")


class PublishConfig(Section):
    """Rules for the newest segment, beside those before it, that must hold before a run over segments is exported."""

    metric: Annotated[str | None, MayChange] = None
    """Metric before training on a segment that may not get worse; METRIC/TASK if there are several tasks."""
    worse_by: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.05
    """The metric may be worse by this than its mean on the segments before."""
    calibration_by: Annotated[float | None, MayChange, pydantic.Field(gt=1)] = None
    """The calibration must lie between one over this and this. Unset: anywhere."""
    label_rate_by: Annotated[float | None, MayChange, pydantic.Field(gt=1)] = None
    """The label rate may be this many times its mean on the segments before, or one over this. Unset: any."""
    least_samples: Annotated[float | None, MayChange, pydantic.Field(gt=0, le=1)] = None
    """Fraction of the mean number of samples that a segment must have. Unset: any."""
    most_samples: Annotated[float | None, MayChange, pydantic.Field(gt=1)] = None
    """A segment may have this many times the mean number of samples. Unset: any."""
    shift_by: Annotated[float | None, MayChange, pydantic.Field(gt=0)] = None
    """Greatest population stability index of a feature from the segment before, in a sample. Unset: any."""
    shift_of: Annotated[dict[str, pydantic.PositiveFloat], MayChange] = {}
    """Limits of single columns of features, in place of shift_by."""
    drift_by: Annotated[float | None, MayChange, pydantic.Field(gt=0)] = None
    """Answers to the parity rows of the export before may differ by this, on average. Unset: by anything."""
    size_by: Annotated[float | None, MayChange, pydantic.Field(gt=1)] = None
    """Bytes of the export may be this many times those of the export before, or one over this. Unset: any."""
    window: Annotated[pydantic.PositiveInt, MayChange] = 7
    """Segments before the newest that it is compared with."""

    @pydantic.model_validator(mode="after")
    def _is_used(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if "worse_by" in given and self.metric is None:
            raise InputError(f"publish.worse_by is {self.worse_by:g}, but publish.metric is unset; set both or none")
        if "window" in given and not given.keys() & {*IN_WINDOW}:
            raise InputError(f"publish.window is {self.window}, but there is no rule that compares; set one or none")
        return self
