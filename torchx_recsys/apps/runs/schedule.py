"""Shows the course of a run: its learning rates, as a table, charts and a drawing, its saves and its evaluations."""

from itertools import accumulate

from tabulate import tabulate

from torchx_recsys.apps.pages.chart import Curve, columns, draw, text_chart
from trainer.config.optimizer import Schedule
from trainer.config.root import Config, check_training
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import refuse_existing, write_file
from trainer.data.epoch_order import Lanes, default_lanes
from trainer.data.row_groups import find_training_files
from trainer.optim.schedules import DECAYS, LearningRate, learning_rates, step_at

PARTS = 8  # number of equal parts of the run; the table has their ends, and the steps at which a schedule turns
POINTS = 600  # number of points of a drawn curve


def show_schedule(
    config: Config, steps_per_epoch: int | None = None, out: str | None = None, overwrite: bool = False
) -> None:
    """Shows the learning rates, saves and evaluations of a run. CONFIG is a TOML file or a name.

    Args:
        config: The configuration.
        steps_per_epoch: Steps of an epoch. Unset: from data.train, if anything counts in epochs.
        out: A file to draw them to, .svg or .png, any fsspec URL.
        overwrite: Replace a file that exists.

    Raises:
        InputError: The configuration or its data cannot be used, or the file not be written.
    """
    check_training(config)
    if out is not None and not out.endswith((".svg", ".png")):
        raise InputError(f"--out is '{out}'; it must end in .svg or .png")
    refuse_existing({"--out": out}, overwrite)
    if steps_per_epoch is not None and steps_per_epoch < 1:
        raise InputError(f"--steps-per-epoch is {steps_per_epoch}; it must be at least 1")
    rates = learning_rates(config.optimizer)
    counted = steps_per_epoch or _steps_per_epoch(config, rates)
    per_epoch = counted or 1
    last = config.train.steps if config.train.steps is not None else (config.train.epochs or 0) * per_epoch

    def curves(steps: list[int]) -> list[Curve]:
        return [Curve(key, steps, [rate.at(step, per_epoch) for step in steps]) for key, rate in rates.items()]

    telling = sorted({step for rate in rates.values() for step in telling_steps(rate.schedule, last, per_epoch)})
    print(_table(telling, curves(telling), counted))
    print(f"\n{_saves_and_evaluations(config, last, per_epoch)}")
    for curve in curves(columns(last)):
        print(f"\n{text_chart(curve)}")
    if out:
        drawn = curves(sorted({*telling, *(1 + (last - 1) * n // POINTS for n in range(POINTS + 1))}))
        write_file("--out", out, draw(drawn, out.rpartition(".")[2]))
        print(f"\nwritten to {without_secrets(out)}")


def _steps_per_epoch(config: Config, rates: dict[str, LearningRate]) -> int | None:
    """Returns the steps of an epoch of the data; None if nothing is counted in epochs."""
    by_steps = all(rate.schedule.unit == "steps" for rate in rates.values())
    if (
        config.train.steps is not None
        and by_steps
        and not (config.checkpoint.every_epochs or config.evaluate.every_epochs)
    ):
        return None
    files, data = find_training_files(config.data, config.train.seed), config.data
    # An epoch has the same steps on up to 8 ranks, and hardly more on larger numbers.
    lanes = Lanes(files.rows, data.lanes or default_lanes(1), data.global_batch_size, data.last_batch == "keep")
    if lanes.steps == 0:
        raise InputError(
            f"data.global_batch_size is {data.global_batch_size}, more than the {plural(files.rows, 'sample')} to "
            "train on, and data.last_batch is 'drop'; use a smaller batch or 'keep'"
        )
    return lanes.steps


def telling_steps(schedule: Schedule, last: int, steps_per_epoch: int) -> list[int]:
    """Returns the steps at which a schedule turns, and the ends of equal parts of the run."""
    even = [1 + (last - 1) * n // PARTS for n in range(PARTS + 1)]
    turns = [step_at(schedule, elapsed, steps_per_epoch) for elapsed in _turns(schedule)]
    return [step for step in {*even, schedule.warmup_steps, *turns} if 1 <= step <= last]


def _turns(schedule: Schedule) -> list[int]:
    """Returns the steps or epochs after the start of a decay at which it turns."""
    length = schedule.decay_steps
    match schedule.decay:
        case "piecewise":
            return schedule.boundaries
        case "cosine_restarts":
            periods = [length * schedule.growth**n for n in range(PARTS)]
            return [0, *accumulate(periods)]
        case "one_cycle":
            return [round(schedule.rise_fraction * length), length]
    return [0, length] if schedule.decay in DECAYS else []


def _saves_and_evaluations(config: Config, last: int, steps_per_epoch: int) -> str:
    """Returns the steps that saves and evaluations follow, beside saves by the clock and on a stop request."""
    saves = [step for step in range(1, last + 1) if step == last or config.checkpoint.due(step, steps_per_epoch)]
    evaluations = [step for step in range(1, last + 1) if step == last or config.evaluation_due(step, steps_per_epoch)]
    minutes = config.checkpoint.every_minutes
    clock = f", and every {minutes:g} minutes" if minutes else ""
    lines = [f"{_counted('save', saves)}{clock}"]
    if config.data.validation:
        lines.append(_counted("evaluation", evaluations))
    return "\n".join(lines)


def _counted(noun: str, steps: list[int]) -> str:
    shown = [f"{step:,}" for step in steps]
    listed = shown if len(shown) <= PARTS else [*shown[: PARTS // 2], "...", shown[-1]]
    return f"{plural(len(steps), noun)}: after {'step' if len(steps) == 1 else 'steps'} {', '.join(listed)}"


def _table(steps: list[int], curves: list[Curve], steps_per_epoch: int | None) -> str:
    columns = {"step": [f"{step:,}" for step in steps]}
    if steps_per_epoch:
        columns["epoch"] = [f"{(step - 1) // steps_per_epoch + 1}" for step in steps]
    columns |= {curve.title: [f"{value:.6g}" for value in curve.values] for curve in curves}
    return tabulate(columns, headers="keys", disable_numparse=True, stralign="right")
