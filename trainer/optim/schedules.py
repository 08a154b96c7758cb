"""Learning-rate schedules by name: pure functions of the step, so that a resumed run continues where it was.

Not torch.optim.lr_scheduler: its schedulers count steps themselves, which is one more state to save and restore.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from trainer.config.optimizer import OptimizerConfig, Schedule
from trainer.core.registry import find_by_name

Decay = Callable[[Schedule, int], float]
"""Returns the learning-rate multiplier, given the steps or epochs since the decay began, from 0 on."""


def constant(schedule: Schedule, elapsed: int) -> float:
    """Stays at the full rate."""
    return 1.0


def linear(schedule: Schedule, elapsed: int) -> float:
    """Falls linearly to `end_multiplier`, over `decay_steps`."""
    return 1.0 + (schedule.end_multiplier - 1.0) * _done(schedule, elapsed)


def polynomial(schedule: Schedule, elapsed: int) -> float:
    """Falls to `end_multiplier` by a power of the remaining fraction of `decay_steps`."""
    return _to_end(schedule, (1.0 - _done(schedule, elapsed)) ** schedule.power)


def exponential(schedule: Schedule, elapsed: int) -> float:
    """Falls by the factor `decay_rate` in `decay_steps`, at once if `staircase`, but never below `end_multiplier`."""
    periods = elapsed / schedule.decay_steps
    return max(schedule.end_multiplier, schedule.decay_rate ** (math.floor(periods) if schedule.staircase else periods))


def piecewise(schedule: Schedule, elapsed: int) -> float:
    """Takes the next of `multipliers` at each of `boundaries`."""
    return schedule.multipliers[bisect_right(schedule.boundaries, elapsed)]


def cosine(schedule: Schedule, elapsed: int) -> float:
    """Falls to `end_multiplier` along half a cosine, over `decay_steps` (Loshchilov and Hutter, ICLR 2017)."""
    return _to_end(schedule, _half_cosine(_done(schedule, elapsed)))


def cosine_restarts(schedule: Schedule, elapsed: int) -> float:
    """Restarts the cosine after each period; the first lasts `decay_steps`, each next one `growth` times longer."""
    period = schedule.decay_steps
    if schedule.growth == 1:
        elapsed %= period
    while elapsed >= period:  # no logarithm, which rounds: a restart would come a step early or late
        elapsed, period = elapsed - period, period * schedule.growth
    return _to_end(schedule, _half_cosine(elapsed / period))


def one_cycle(schedule: Schedule, elapsed: int) -> float:
    """Rises to the full rate and falls to `end_multiplier`, each along half a cosine (Smith and Topin, 2018).

    As torch's OneCycleLR in two phases: the first step or epoch is at 0 and the last at `decay_steps - 1`.
    """
    now = elapsed - (schedule.unit == "steps")
    peak, last = schedule.rise_fraction * schedule.decay_steps - 1, schedule.decay_steps - 1
    if now <= peak:
        return 1.0 + (schedule.start_multiplier - 1.0) * _half_cosine(now / peak if peak else 1.0)
    return _to_end(schedule, _half_cosine(min(1.0, (now - peak) / (last - peak))))


def inverse_sqrt(schedule: Schedule, elapsed: int) -> float:
    """Falls with the square root of time, at `decay_steps` to 0.71 (Vaswani et al., 2017, if that is the warm-up)."""
    return math.sqrt(schedule.decay_steps / (schedule.decay_steps + elapsed))


DECAYS: dict[str, Decay] = {
    "constant": constant,
    "linear": linear,
    "polynomial": polynomial,
    "exponential": exponential,
    "piecewise": piecewise,
    "cosine": cosine,
    "cosine_restarts": cosine_restarts,
    "one_cycle": one_cycle,
    "inverse_sqrt": inverse_sqrt,
}


def lr_multiplier(schedule: Schedule, step: int, key: str = "schedule", steps_per_epoch: int = 1) -> float:
    """Returns the multiplier of the base learning rate at a step.

    Args:
        schedule: The schedule.
        step: The step; the first is 1.
        key: The schedule's key in the configuration, for messages.
        steps_per_epoch: Steps of an epoch, for schedules that count epochs.

    Raises:
        InputError: There is no such decay.
    """
    decay: Decay = find_by_name(f"{key}.decay", schedule.decay, DECAYS)
    if step < schedule.warmup_steps:
        return schedule.warmup_start + (1.0 - schedule.warmup_start) * step / schedule.warmup_steps
    if schedule.decay not in DECAYS:
        return decay(schedule, _now(schedule, step, steps_per_epoch))  # the user's own decay starts when it likes
    return decay(schedule, max(0, _now(schedule, step, steps_per_epoch) - _begin(schedule, steps_per_epoch)))


def step_at(schedule: Schedule, elapsed: int, steps_per_epoch: int = 1) -> int:
    """Returns the first step at which `elapsed` steps or epochs have passed since the decay began."""
    now = _begin(schedule, steps_per_epoch) + elapsed
    return now * steps_per_epoch + 1 if schedule.unit == "epochs" else now


def _now(schedule: Schedule, step: int, steps_per_epoch: int) -> int:
    """Returns the step, or the epochs done before it."""
    return (step - 1) // steps_per_epoch if schedule.unit == "epochs" else step


def _begin(schedule: Schedule, steps_per_epoch: int) -> int:
    """Returns the step or epoch in which the decay begins: the end of the warm-up, or later."""
    return max(_now(schedule, schedule.warmup_steps, steps_per_epoch), schedule.decay_start)


def _done(schedule: Schedule, elapsed: int) -> float:
    return min(1.0, elapsed / schedule.decay_steps)


def _half_cosine(done: float) -> float:
    """Returns 1 at 0 and 0 at 1."""
    return (1.0 + math.cos(math.pi * done)) / 2.0


def _to_end(schedule: Schedule, left: float) -> float:
    return schedule.end_multiplier + (1.0 - schedule.end_multiplier) * left


@dataclass(frozen=True)
class LearningRate:
    """A base learning rate and its schedule.

    Attributes:
        base: The rate before the schedule's multiplier.
        schedule: The schedule.
        schedule_key: The schedule's key in the configuration, for messages.
    """

    base: float
    schedule: Schedule
    schedule_key: str

    def at(self, step: int, steps_per_epoch: int) -> float:
        """Returns the rate of a step; the first is 1.

        Raises:
            InputError: There is no such decay.
        """
        return self.base * lr_multiplier(self.schedule, step, self.schedule_key, steps_per_epoch)


def learning_rates(config: OptimizerConfig) -> dict[str, LearningRate]:
    """Returns all learning rates by their key in `[optimizer]`, such as `sparse` and `dense`."""
    sparse, dense = config.sparse, config.dense
    rates = {
        "sparse": LearningRate(sparse.learning_rate, sparse.schedule, "optimizer.sparse.schedule"),
        "dense": LearningRate(dense.learning_rate, dense.schedule, "optimizer.dense.schedule"),
    }
    for table in config.tables:
        settings = config.of_table(table)
        owner = "optimizer.sparse" if settings.schedule is sparse.schedule else f"optimizer.tables.{table}"
        rates[table_key(table)] = LearningRate(settings.learning_rate, settings.schedule, f"{owner}.schedule")
    for name in dense.parts:
        settings = dense.of_part(name)
        owner = "optimizer.dense" if settings.schedule is dense.schedule else f"optimizer.dense.parts.{name}"
        rates[part_key(name)] = LearningRate(settings.learning_rate, settings.schedule, f"{owner}.schedule")
    return rates


def table_key(table: str) -> str:
    """Returns the key in `[optimizer]` of a table with its own settings."""
    return f"tables.{table}"


def part_key(name: str) -> str:
    """Returns the key in `[optimizer]` of a parameter group of dense weights."""
    return f"dense.parts.{name}"
