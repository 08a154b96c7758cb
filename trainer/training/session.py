"""A training run in progress: records steps, evaluates, saves and stops.

`Session` is the object that the loop works with. It decides nothing about a step's arithmetic (`step.py`) and nothing
about the order of events (`step_loop.py`): each method does a single thing that a step may be followed by.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol

from torch import nn

from trainer.batches.batch import Batch
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.store import ENDS, Checkpoint, Checkpoints
from trainer.config.root import Config, to_toml
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.outcome import SAVED_WORD, STOPPED_WORD, write_outcome
from trainer.core.progress import PROGRESS
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.rules.vocabulary import fingerprints
from trainer.run.preemption import Action, Stopped, StopRequests
from trainer.run.reporter import Reporter, StallTimer, tolerate_failed_writes
from trainer.run.step_clock import named_range
from trainer.run.watchdog import Watchdog
from trainer.training.epochs import EpochOrder
from trainer.training.evaluate import Evaluator
from trainer.training.loss_scale import StepState
from trainer.training.sharded_model import ShardedModel
from trainer.training.step import StepResult, TrainingStep
from trainer.training.stop_early import reason_to_stop
from trainer.training.watchers import RunView, StopRequest, Watcher


@dataclass(frozen=True, kw_only=True)
class ClaimedRun:
    """A run directory that belongs to this job until its end; no other job writes to it.

    Attributes:
        config: The configuration.
        context: This process among the ranks.
        directory: The run directory.
        checkpoints: The checkpoints in the run directory.
        start: The checkpoint to resume from; None for a start from scratch.
        verify_seconds: Time to find and verify that checkpoint.
        watchers: The watchers of the run.
    """

    config: Config
    context: DistributedContext
    directory: RunDirectory
    checkpoints: Checkpoints
    start: Checkpoint | None
    verify_seconds: float
    watchers: Sequence[Watcher]

    def log(self, text: str) -> None:
        """Prints a line on rank 0."""
        if self.context.is_rank0:
            print(without_secrets(text), flush=True)


class Tuner(Protocol):
    """May change how later steps round, from a step on that the run's files have."""

    def after_step(self, step: int) -> None:
        """Called on every rank after a step, before the step is saved."""
        ...


@dataclass(frozen=True, kw_only=True)
class Session:
    """A training run, ready to train.

    Attributes:
        claimed: The run directory.
        order: The order of samples.
        model: The sharded model and its optimizers.
        evaluator: Evaluates the model.
        saver: Saves checkpoints.
        reporter: Writes metrics.
        view: The run as watchers see it.
        stop_request: Holds a watcher's request to end training.
        batches: The batches to train on, in order.
        stop_requests: Signals that request a stop.
        watchdog: Reports a rank that is stuck.
        step_state: State that a step leaves to later steps.
        tuners: What extensions may change of how later steps are computed.
    """

    claimed: ClaimedRun
    order: EpochOrder
    model: ShardedModel
    evaluator: Evaluator
    saver: Saver
    reporter: Reporter
    view: RunView
    stop_request: StopRequest
    batches: StallTimer[Batch]
    stop_requests: StopRequests
    watchdog: Watchdog
    step_state: StepState
    tuners: list[Tuner] = field(default_factory=list)

    @property
    def config(self) -> Config:
        """The configuration."""
        return self.claimed.config

    @property
    def context(self) -> DistributedContext:
        """This process among the ranks."""
        return self.claimed.context

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return self.claimed.directory

    def training_step(self) -> TrainingStep:
        """Makes the pipeline that takes the steps of this run."""
        return TrainingStep(self.model, self.config, self.context, self.step_state, self._where)

    def _where(self, step: int, position: int) -> str:
        """Returns where a sample is in the files, by a step and a position in its global batch."""
        return self.order.loader.locate(step - self.order.steps_before, position)

    def record(self, step: int, result: StepResult) -> None:
        """Records a step's loss, samples, time and scalars, and calls the watchers."""
        self.watchdog.note(f"the work after step {step}")
        epoch, epoch_step = self.order.place_of(step)
        samples = self.order.lanes.samples_in_step(epoch_step)
        if result.skipped:
            self.reporter.log(f"step {step:,} is skipped: its loss or a gradient is not finite")
        with named_range("report"):
            self.view._outputs[:] = [] if result.skipped else result.outputs
            due = self.reporter.due(step)
            counts = self._counts(step) if due else {}
            self.reporter.step(step, epoch, result.means, samples, self.batches.stalled_seconds, counts)
            if due and result.gradient_norm is None:  # clipping would have reported it
                self.reporter.draw(lambda board: board.add_scalar("train/gradient_norm", self._norm(), step))
        for watcher in self.claimed.watchers:
            watcher.after_step(self.view, step)

    def tune(self, step: int) -> None:
        """Lets extensions change how later steps are computed."""
        for tuner in self.tuners:
            tuner.after_step(step)

    def _counts(self, step: int) -> dict[str, float]:
        """Returns the values at the end of a report interval, which all ranks compute."""
        counts = self.step_state.report(self.config.train.scales_loss) | self.model.id_map.report()
        counts |= {f"rate/{key}": rate for key, rate in self.model.optimizers.rates(step).items()}
        for watcher in self.claimed.watchers:
            counts |= watcher.numbers(self.view, step)
        return counts

    def _norm(self) -> float:
        return self.model.optimizers.gradient_norm()

    def requested_action(self, step: int) -> Action:
        """Agrees with all ranks on the action after a step, the most urgent that any rank requests.

        One reduction serves signals, saves that are due by the clock, and watchers, as each costs all ranks a wait.
        """
        with named_range("requests"):
            watch = any(watcher.asks() for watcher in self.claimed.watchers) or self.stop_request.reason is not None
            action = self.stop_requests.all_reduce(self.saver.overdue(), watch)
        if action is Action.WATCH:
            for watcher in self.claimed.watchers:
                watcher.asked(self.view, step)
            self.stop_request.agree(self.context)
        return action

    def save_due(self, step: int) -> bool:
        """Returns whether a save is due after a step, by the number of the step."""
        return self.config.checkpoint.due(step, self.order.lanes.steps)

    def evaluation_due(self, step: int) -> bool:
        """Returns whether to evaluate on the validation split after a step."""
        return "validation" in self.evaluator.splits and self.config.evaluation_due(step, self.order.lanes.steps)

    def steps(self) -> Iterator[int]:
        """Yields the steps to take, until the last step or until training ends early."""
        for step in range(self.order.steps_done + 1, self.order.last_step + 1):
            if self.reason_to_stop(step - 1):
                return
            yield step

    def reason_to_stop(self, step: int) -> str | None:
        """Returns the reason to end training early after a step; None if it continues, or has reached its last step."""
        if step >= self.order.last_step:
            return None
        if self.stop_request.agreed:
            return self.stop_request.agreed
        config, evaluated = self.config.train.stop_early, step == self.order.steps_done or self.evaluation_due(step)
        if config.metric is None or not evaluated:
            return None
        return broadcast_from_rank0(self.context, lambda: reason_to_stop(config, self.reporter.evaluations(), step))

    def evaluate(self, step: int, model: nn.Module, split: str, of_step: int | None = None) -> None:
        """Evaluates a split and reports it.

        Args:
            step: Steps done.
            model: The model, detached from the training pipeline.
            split: validation or test.
            of_step: The step whose weights the model has; None for `step`.

        Raises:
            Stopped: A signal requested a stop.
        """
        with self.model.averaged(), self.model.id_map.rewound(), named_range("evaluation"):
            metrics = self.evaluator.evaluate(
                model, split, self.model.id_map, partial(self._stop_requested, step, split)
            )
        if metrics is None:
            self.stop(step)
        of_step = step if of_step is None else of_step
        self.reporter.evaluation(of_step, split, metrics)
        self.reporter.flush()  # watchers read the run's files, so the lines must be there
        for watcher in self.claimed.watchers:
            watcher.after_evaluation(self.view, of_step, split, metrics)
        self.stop_request.agree(self.context)
        self.reporter.resume_clock()

    def lacks_evaluation(self) -> bool:
        """Returns whether an evaluation is due before the next step: a stop interrupted it, or it is the very first."""
        step = self.order.steps_done
        if self.order.evaluated_first:  # an evaluation recorded for this step may be of other samples
            return step == self.order.steps_before
        return 0 < step < self.order.last_step and self.evaluation_due(step) and not self.is_validated(step)

    def is_validated(self, step: int) -> bool:
        """Returns whether a step was evaluated on the validation split."""
        # Every rank has the same lines in memory. Only their metrics could differ: those of the user's own.
        return any(line["step"] == step and line["split"] == "validation" for line in self.reporter.evaluations())

    def _stop_requested(self, step: int, split: str) -> bool:
        self.watchdog.note(f"the evaluation on {split} after step {step}")
        PROGRESS.doing(f"the evaluation on {split}")
        return self.stop_requests.all_reduce() is Action.STOP

    def save(self, step: int) -> None:
        """Starts to save a checkpoint in the background.

        `train_state` is everything that later steps depend on beside tensors. A value that is missing here is a resumed
        run that differs from an uninterrupted run.
        """
        train_state: dict[str, Any] = {
            "epoch": self.order.place_of(step + 1)[0],
            "lanes": self.order.lanes.lanes,
            "seed": self.config.train.seed,
            "earlier_table_steps": self.model.optimizers.tables.earlier_steps,
            "running": self.reporter.state(),
            "step_state": asdict(self.step_state),
            "data": self.order.files.description(),
            "types": {**self.order.types.meanings},
            "vocabularies": fingerprints(self.config.data.sparse),
            "catalogue": self.order.catalogue.fingerprint if self.order.catalogue else None,
            **self.model.id_map.rules(),
            **self.order.state,
        }
        if self.order.ends is not None and step == self.order.last_step:
            train_state[ENDS] = self.order.ends
        texts = {"config.toml": to_toml(self.config), "plan.json": json.dumps(self.model.plan_json, indent=2)}
        # A resumed run does not write the lines up to this step again, so they must be stored before the checkpoint is.
        self.reporter.flush()
        with named_range("save"), self.model.id_map.rewound():
            self.saver.save(step, self.model.tensors(), train_state, texts)
        self.reporter.resume_clock()

    def stop(self, step: int) -> NoReturn:
        """Ends training before its last step; saves a checkpoint if the grace period is long enough.

        Raises:
            Stopped: Always.
        """
        self.saver.wait()  # this step may be the one that is being saved
        left = self.config.checkpoint.grace_seconds - self.stop_requests.waiting_seconds
        # Rank 0 decides, because clocks differ and a save needs all ranks.
        if self.saver.saved_step != step and broadcast_from_rank0(self.context, lambda: self.saver.save_seconds < left):
            self.save(step)
            self.saver.wait()
        outcome = f"{STOPPED_WORD} at step {step}, {self.saved(step)}"
        self.reporter.close()
        record_end(self.claimed, "stopped", step, outcome)
        self.reporter.log(f"{outcome}\n\nThe same command resumes it.")
        raise Stopped

    def saved(self, step: int) -> str:
        """Describes what is saved and what is lost: the newest checkpoint, and the steps after it up to `step`."""
        first, url = self.saver.saved_step + 1, self.saver.newest_url
        if first > step:
            return f"{SAVED_WORD} {url}" if url else "nothing saved"
        lost = f"step {step} is lost" if first == step else f"steps {first} to {step} are lost"
        # Schedulers look for the word, and read the step at the end of the line.
        return f"{lost}: {f'the newest checkpoint {SAVED_WORD} is {url}' if url else 'there is no checkpoint'}"


def record_end(
    claimed: ClaimedRun, state: str, step: int, outcome: str, measured: Mapping[str, Any] | None = None
) -> None:
    """Records how a run ended, in run.json and for the scheduler; all ranks call it.

    A failure of storage is only logged, because the run itself is over.

    Args:
        claimed: The run; its reports are closed.
        state: The value of `state` in run.json.
        step: Steps done.
        outcome: The last line, which schedulers read.
        measured: Step times and memory, for run.json. If empty, run.json keeps the values of an earlier attempt.
    """
    directory = claimed.directory
    if claimed.context.is_rank0:
        with tolerate_failed_writes(directory, claimed.log):
            facts = directory.facts() | {"state": state, "step": step, "outcome": without_secrets(outcome)}
            directory.write_json("run.json", facts | ({"measured": measured} if measured else {}))
        write_outcome(without_secrets(outcome))
    view = RunView(config=claimed.config, context=claimed.context, directory=directory)
    for watcher in claimed.watchers:
        watcher.at_end(view, step, state)
