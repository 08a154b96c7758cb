"""Configuration of learning-rate schedules."""

import pydantic

from trainer.config.section import Section


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
