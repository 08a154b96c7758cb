"""Learning-rate schedules: pure functions of the step, so that a resumed run goes on where it was."""

from typing import Literal

import pydantic

from trainer.section import Section


class Schedule(Section):
    """How the learning rate changes: a linear warm-up, then constant or a decay."""

    warmup_steps: pydantic.NonNegativeInt = 0
    """Steps over which the rate rises linearly to its full value, which it reaches at this step."""
    decay: Literal["constant", "linear"] = "constant"
    """What follows: constant stays, linear falls to end_factor."""
    decay_start: pydantic.NonNegativeInt = 0
    """Last step at the full value, if later than the warm-up."""
    decay_steps: pydantic.PositiveInt = 1
    """Steps that the decay takes."""
    end_factor: float = 0.0
    """What part of the full value is left at the end of the decay."""


def factor(schedule: Schedule, step: int) -> float:
    """Returns what the base rate is multiplied with at a step; the first step is 1."""
    if step < schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.decay == "constant":
        return 1.0
    start = max(schedule.warmup_steps, schedule.decay_start)
    done = min(1.0, max(0.0, (step - start) / schedule.decay_steps))
    return 1.0 + (schedule.end_factor - 1.0) * done
