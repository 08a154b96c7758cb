"""Learning-rate schedules by name: pure functions of the step, so that a resumed run continues where it was."""

from collections.abc import Callable

from trainer.config.schedule import Schedule
from trainer.core.registry import find_by_name

Decay = Callable[[Schedule, int], float]
"""Returns the learning-rate multiplier of a step after the warm-up; the first step is 1."""


def constant(schedule: Schedule, step: int) -> float:
    """Stays at the full rate."""
    return 1.0


def linear(schedule: Schedule, step: int) -> float:
    """Falls linearly to `end_multiplier`, over `decay_steps` steps."""
    start = max(schedule.warmup_steps, schedule.decay_start)
    done = min(1.0, max(0.0, (step - start) / schedule.decay_steps))
    return 1.0 + (schedule.end_multiplier - 1.0) * done


DECAYS: dict[str, Decay] = {"constant": constant, "linear": linear}


def lr_multiplier(schedule: Schedule, step: int, key: str = "schedule") -> float:
    """Returns the multiplier of the base learning rate at a step.

    Args:
        schedule: The schedule.
        step: The step; the first is 1.
        key: The schedule's key in the configuration, for messages.

    Raises:
        InputError: There is no such decay.
    """
    decay: Decay = find_by_name(f"{key}.decay", schedule.decay, DECAYS)
    return step / schedule.warmup_steps if step < schedule.warmup_steps else decay(schedule, step)
