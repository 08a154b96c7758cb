"""Learning rates: base rates with their schedules, by the part of the model that each is for."""

from dataclasses import dataclass

from trainer.config.optim import OptimizerConfig
from trainer.config.schedule import Schedule
from trainer.optim.schedules import lr_multiplier


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
    """Returns all learning rates by the key in `[optimizer]` of what they are for, such as `sparse` and `dense`."""
    sparse, dense = config.sparse, config.dense
    rates = {
        "sparse": LearningRate(sparse.learning_rate, sparse.schedule, "optimizer.sparse.schedule"),
        "dense": LearningRate(dense.learning_rate, dense.schedule, "optimizer.dense.schedule"),
    }
    for table in config.tables:
        settings = config.of_table(table)
        owner = "optimizer.sparse" if settings.schedule is sparse.schedule else f"optimizer.tables.{table}"
        rates[table_key(table)] = LearningRate(settings.learning_rate, settings.schedule, f"{owner}.schedule")
    for name, part in dense.parts.items():
        schedule = part.schedule.or_else(dense.schedule)
        owner = "optimizer.dense" if schedule is dense.schedule else f"optimizer.dense.parts.{name}"
        base = dense.learning_rate if part.learning_rate is None else part.learning_rate
        rates[part_key(name)] = LearningRate(base, schedule, f"{owner}.schedule")
    return rates


def table_key(table: str) -> str:
    """Returns the key of a table with settings of its own in `[optimizer]`."""
    return f"tables.{table}"


def part_key(name: str) -> str:
    """Returns the key of a part of the dense weights in `[optimizer]`."""
    return f"dense.parts.{name}"
