"""Configuration of learning-rate schedules."""

from typing import Literal, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import Section

LENGTH = ("warmup_steps", "unit", "decay_start", "decay_steps")
# The names of DECAYS in trainer/optim, which cannot be imported without torch, each with the keys that it uses.
USED_BY = {
    "constant": ("warmup_steps",),
    "linear": (*LENGTH, "end_multiplier"),
    "polynomial": (*LENGTH, "end_multiplier", "power"),
    "exponential": (*LENGTH, "end_multiplier", "decay_rate", "staircase"),
    "piecewise": ("warmup_steps", "unit", "decay_start", "boundaries", "multipliers"),
    "cosine": (*LENGTH, "end_multiplier"),
    "cosine_restarts": (*LENGTH, "end_multiplier", "growth"),
    "one_cycle": ("unit", "decay_steps", "start_multiplier", "rise_fraction", "end_multiplier"),
    "inverse_sqrt": LENGTH,
    "inherit": (),
}


class Schedule(Section):
    """Learning-rate schedule: a linear warm-up, then constant or a decay."""

    warmup_steps: pydantic.NonNegativeInt = 0
    """Steps of the linear warm-up; the last of them has the full rate."""
    decay: str = "constant"
    """After the warm-up: constant, linear, polynomial, exponential, piecewise, cosine, cosine_restarts, one_cycle,
    inverse_sqrt (see docs/guides/schedules.md), or package.module:function for your own."""
    unit: Literal["steps", "epochs"] = "steps"
    """Unit of decay_start, decay_steps and boundaries. By epochs, the rate changes only from one to the next."""
    decay_start: pydantic.NonNegativeInt = 0
    """The decay begins after this many steps or epochs, if that is later than the warm-up."""
    decay_steps: pydantic.PositiveInt = 1
    """Length of the decay in steps or epochs; in cosine_restarts, the length of the first period."""
    end_multiplier: pydantic.NonNegativeFloat = 0.0
    """Learning-rate multiplier after the decay, at its lowest."""
    power: pydantic.PositiveFloat = 1.0
    """Exponent of polynomial."""
    decay_rate: float = pydantic.Field(default=0.5, gt=0, le=1)
    """Multiplier of exponential after decay_steps."""
    staircase: bool = False
    """Let exponential fall only once in decay_steps."""
    boundaries: list[pydantic.PositiveInt] = []
    """Steps or epochs after the warm-up from which piecewise takes the next multiplier."""
    multipliers: list[pydantic.NonNegativeFloat] = []
    """Learning-rate multipliers of piecewise: one before the first boundary, and one from each boundary on."""
    growth: pydantic.PositiveInt = 1
    """Factor by which each period of cosine_restarts is longer than the period before."""
    start_multiplier: pydantic.NonNegativeFloat = 0.04
    """First learning-rate multiplier of one_cycle."""
    rise_fraction: float = pydantic.Field(default=0.3, gt=0, lt=1)
    """Fraction of decay_steps in which one_cycle rises to the full rate."""

    @pydantic.model_validator(mode="after")
    def _is_used(self) -> Self:
        given = self.model_dump(exclude_defaults=True, exclude={"decay"})
        unused = sorted(given.keys() - set(USED_BY.get(self.decay, given)))
        if unused:
            users = ", ".join(decay for decay, keys in USED_BY.items() if unused[0] in keys)
            raise InputError(
                f"{{key}}.{unused[0]} is {given[unused[0]]!r}, which {{key}}.decay '{self.decay}' does not use; "
                f"leave it out, or use {users}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.decay in ("polynomial", "cosine", "cosine_restarts", "one_cycle") and self.decay_steps == 1:
            raise InputError(f"{{key}}.decay_steps is 1; set the length of {{key}}.decay '{self.decay}', 2 or more")
        return self

    @pydantic.model_validator(mode="after")
    def _is_piecewise(self) -> Self:
        if self.decay != "piecewise":
            return self
        if not self.boundaries or self.boundaries != sorted(set(self.boundaries)):
            raise InputError(f"{{key}}.boundaries is {self.boundaries}; they must be set and ascend")
        if len(self.multipliers) != len(self.boundaries) + 1:
            raise InputError(
                f"{{key}}.multipliers is {self.multipliers}; {len(self.boundaries)} boundaries need "
                f"{len(self.boundaries) + 1} of them"
            )
        return self


class PartSchedule(Schedule):
    """Learning-rate schedule of a table or a parameter group."""

    # No Schedule or None: a resume could not tell a schedule that is unset from one of nothing but defaults.
    decay: str = "inherit"
    """inherit, for the schedule of the whole, or any other decay (see optimizer.dense.schedule)."""

    def or_else(self, whole: Schedule) -> Schedule:
        """Returns this schedule, or `whole` if it is inherited."""
        return whole if self.decay == "inherit" else self
