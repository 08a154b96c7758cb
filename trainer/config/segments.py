"""Configuration of data that comes in segments, such as days."""

from typing import Annotated, Literal, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section

NAME = "{segment}"


class SegmentsConfig(Section):
    """Data that comes in segments, such as days: each is evaluated and then trained on once, in the order of names."""

    path: str | None = None
    """Files of a segment, as in data.train, with {segment} for its name: logs/dt={segment}. Unset: no segments."""
    first: str | None = None
    """Name of the first segment. Unset: the first by name that is there when the run begins."""
    until: Annotated[str | None, MayChange] = None
    """Name of the last segment. Unset: all that there are."""
    most: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Most segments that one job trains on. Unset: no limit."""
    skip: Annotated[list[Annotated[str, pydantic.StringConstraints(min_length=1)]], MayChange] = []
    """Names of segments to leave out, or patterns of names such as 2026-11-*."""
    marker: Annotated[str | None, MayChange] = None
    """File in the directory of a segment that says that it is complete, such as _SUCCESS. Unset: none is needed."""
    least_files: Annotated[pydantic.PositiveInt, MayChange] = 1
    """A segment with fewer files is not complete."""
    least_age_seconds: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """A segment is complete once its files have not changed for this long."""
    follow: Annotated[bool, MayChange] = False
    """Wait for the next segment in place of ending the job."""
    poll_seconds: Annotated[pydantic.PositiveFloat, MayChange] = 60.0
    """Time between two looks for the next segment."""
    forget_after: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """A managed id that none of this many segments had loses its row. Unset: once another id needs the row."""
    changed: Annotated[Literal["tell", "train", "stop"], MayChange] = "tell"
    """If files of a trained segment changed, or a segment came late: tell goes on without it, train trains on it next,
    stop ends the job."""

    @pydantic.model_validator(mode="after")
    def _is_a_pattern(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if self.path is None and given:
            raise InputError(f"data.segments.{min(given)} is set, but data.segments.path is not; set both or none")
        if self.path is not None and self.path.count(NAME) != 1:
            raise InputError(f"data.segments.path is '{self.path}', which must have {NAME} once: logs/dt={NAME}")
        if self.until is not None and self.first is not None and self.until < self.first:
            raise InputError(f"data.segments.until is '{self.until}', before data.segments.first, '{self.first}'")
        return self
