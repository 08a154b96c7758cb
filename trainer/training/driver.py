"""What a run trains on, from its first step to its last: one order of samples, unless an extension has several."""

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
    """Drives a run, over one order of samples after another. Every rank calls every method."""

    def orders(self) -> Iterator[EpochOrder]:
        """Yields the orders that are left; the next only when the run was trained on the one before, and saved.

        Raises:
            InputError: The data cannot be used.
            Stopped: A signal requested a stop.
        """
        ...

    def end(self, finished: Finished | None) -> None:
        """Records how the run ended, and prints where it is; called when there are no orders left.

        Args:
            finished: The end of the last order; None if this job had none.
        """
        ...


class OneOrder:
    """Drives a run over `data.train`, whose samples have one order for all epochs.

    Args:
        job: What the job holds.
    """

    def __init__(self, job: Job) -> None:
        self._claimed = job.claimed

    def orders(self) -> Iterator[EpochOrder]:
        """Yields the order."""
        yield plan_epochs(self._claimed.config, self._claimed.start, self._claimed.context)

    def end(self, finished: Finished | None) -> None:
        """Records how the run ended, and prints its files and the next commands."""
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
