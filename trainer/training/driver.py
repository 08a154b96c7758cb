"""The driver of a run: decides on which samples the run trains, from its first step to its last.

A plain run has one order of samples (`OneOrder`). An extension may have several, such as one for each day of data.
"""

from collections.abc import Iterator
from typing import Protocol

from tabulate import tabulate

from trainer.core.console import next_commands
from trainer.core.outcome import FINISHED_WORD
from trainer.run.step_clock import in_words
from trainer.training.epochs import EpochOrder, plan_epochs
from trainer.training.finish import Finished
from trainer.training.session import record_end
from trainer.training.setup import Job


class Driver(Protocol):
    """Yields the orders of samples that a run trains on, and records its end. Every rank calls every method."""

    def orders(self) -> Iterator[EpochOrder]:
        """Yields the orders of samples that are left. The run has trained on an order and saved before the next.

        Raises:
            InputError: The data cannot be used.
            Stopped: A signal requested a stop.
        """
        ...

    def end(self, finished: Finished | None) -> None:
        """Records how the run ended and prints its run directory; called when no orders are left.

        Args:
            finished: How training on the last order ended; None if this job had no order left.
        """
        ...


class OneOrder:
    """The driver of a plain run: all epochs over `data.train` are one order of samples.

    Args:
        job: What the job holds.
    """

    def __init__(self, job: Job) -> None:
        self._claimed = job.claimed

    def orders(self) -> Iterator[EpochOrder]:
        """Yields the only order."""
        yield plan_epochs(self._claimed.config, self._claimed.start, self._claimed.context)

    def end(self, finished: Finished | None) -> None:
        """Records how the run ended and prints its files and the next commands."""
        assert finished
        claimed, step = self._claimed, finished.step
        outcome = f"{FINISHED_WORD} at step {step}" + (f", {finished.early}" if finished.early else "")
        finished.reporter.track(finished.evaluated_step, claimed.checkpoints.url(finished.evaluated_step))
        if finished.measured:
            claimed.log(in_words(finished.measured))
        record_end(claimed, "finished", step, outcome, finished.measured)
        claimed.log(f"\n{self._summary(step, finished.evaluated_step)}")

    def _summary(self, step: int, evaluated_step: int) -> str:
        config, directory, checkpoints = self._claimed.config, self._claimed.directory, self._claimed.checkpoints
        url_of, out = directory.url_of, directory.url
        rows = [["run directory", out], ["checkpoint", checkpoints.url(step)]]
        if evaluated_step != step:
            rows.append(["best checkpoint", checkpoints.url(evaluated_step)])
        rows += [
            ["configuration", url_of("config.toml")],
            ["metrics", url_of("metrics.jsonl")],
            ["evaluations", url_of("evaluations.jsonl")],
            *([name, url_of(file)] for watcher in self._claimed.watchers for name, file in watcher.files.items()),
        ]
        if config.report.tensorboard:
            rows.append(["TensorBoard", url_of("tensorboard")])
        commands = [
            ["torchx", "run", "tools.tensorboard", "--logdir", out],
            ["torchx", "run", "tools.plan", "--run", out],
        ]
        if config.data.validation or config.data.test:
            split = [] if config.data.test else ["--split", "validation"]
            commands.append(["torchx", "run", "dlrm.evaluate", "--config", url_of("config.toml"), "--out", out, *split])
        return f"{tabulate(rows, tablefmt='plain')}\n\n{next_commands(*commands)}"
