"""A training run in progress: records steps, evaluates, saves and stops."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NoReturn

from torch import nn

from trainer.batches.batch import Batch
from trainer.batches.catalogue import Catalogue
from trainer.batches.loader import Loader
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.store import Checkpoint, Checkpoints
from trainer.config.root import Config, to_toml
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.outcome import SAVED_WORD, STOPPED_WORD, write_outcome
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import FileSet
from trainer.data.order import Lanes
from trainer.rules.vocabulary import fingerprints
from trainer.run.histograms import Histograms
from trainer.run.page import write_page
from trainer.run.preemption import Action, Stopped, StopRequests
from trainer.run.profiler import Profiler
from trainer.run.reporter import Reporter, StallTimer
from trainer.run.step_clock import named_range
from trainer.run.watchdog import Watchdog
from trainer.training.evaluate import Evaluator
from trainer.training.nonfinite import StepState
from trainer.training.sharded_model import ShardedModel
from trainer.training.step import StepResult, TrainingStep
from trainer.training.stop_early import reason_to_stop


@dataclass(frozen=True, kw_only=True)
class ClaimedRun:
    """A run directory that this job alone writes to.

    Attributes:
        config: The configuration.
        context: This process among the ranks.
        directory: The run directory.
        checkpoints: Its checkpoints.
        start: The checkpoint to resume from; None for a start from scratch.
        verify_seconds: Time that finding and verifying it took.
    """

    config: Config
    context: DistributedContext
    directory: RunDirectory
    checkpoints: Checkpoints
    start: Checkpoint | None
    verify_seconds: float


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    """The order in which a run trains on its samples.

    Attributes:
        files: The training data.
        lanes: The samples of every step.
        loader: This rank's batches.
        catalogue: All items; None without data.catalogue.
        types: The types of the columns, which the run keeps.
        steps_done: Steps that the run has taken before this job; the next step is one more.
        last_step: The step that training ends with.
        segment: The segment that these are the samples of; None if the data has none.
        unused_since: Managed ids that no step after this one had lose their rows with the next step; None keeps all.
    """

    files: FileSet
    lanes: Lanes
    loader: Loader
    catalogue: Catalogue | None
    types: RecordedTypes
    steps_done: int
    last_step: int
    segment: "SegmentPlace | None" = None
    unused_since: int | None = None

    @property
    def steps_before(self) -> int:
        """Steps that the run took on earlier segments."""
        return self.segment.first_step if self.segment else 0

    def place_of(self, step: int) -> tuple[int, int]:
        """Returns the epoch of a step, of several segments their number, and the steps of that epoch before it."""
        epoch, epoch_step = divmod(step - 1 - self.steps_before, self.lanes.steps)
        return epoch + (self.segment.number if self.segment else 0), epoch_step

    def batches(self) -> Iterator[Batch]:
        """Returns this rank's batches of the steps that are left."""
        return self.loader.batches(self.steps_done - self.steps_before, self.last_step - self.steps_before)


@dataclass(frozen=True, kw_only=True)
class SegmentPlace:
    """Where a segment is in the life of a run; a part of the train state.

    Attributes:
        name: Its name.
        number: Segments before it.
        first_step: Steps that the run took on those.
        last_step: Steps when it has been trained on.
        samples: Its samples.
        files: Number of its files.
        fingerprint: Changes with its files and their sizes.
        reached: The last name of it and those before; of a segment that came late, a later one than its own.
        contents: The same for the same files under other names; empty without rows.
    """

    name: str
    number: int
    first_step: int
    last_step: int
    samples: int
    files: int
    fingerprint: str
    reached: str
    contents: str = ""


@dataclass(frozen=True, kw_only=True)
class Session:
    """A training run, ready to train.

    Attributes:
        claimed: The run directory, held by this job.
        order: The order of samples.
        model: The sharded model and its optimizers.
        evaluator: Evaluates the model.
        saver: Saves checkpoints.
        reporter: Writes metrics.
        histograms: Writes histograms of the weights.
        profiler: Profiles steps.
        batches: The batches to train on, in order.
        stop_requests: Signals that request a stop.
        watchdog: Reports a rank that is stuck.
        step_state: State that a step leaves to later steps.
    """

    claimed: ClaimedRun
    order: EpochOrder
    model: ShardedModel
    evaluator: Evaluator
    saver: Saver
    reporter: Reporter
    histograms: Histograms
    profiler: Profiler
    batches: StallTimer[Batch]
    stop_requests: StopRequests
    watchdog: Watchdog
    step_state: StepState

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
        """Returns the pipeline that takes the steps of this run."""
        return TrainingStep(self.model, self.config, self.context, self.step_state, self._where)

    def _where(self, step: int, position: int) -> str:
        """Returns where a sample is in the files, by a step and a position in its global batch."""
        return self.order.loader.locate(step - self.order.steps_before, position)

    def record(self, step: int, result: StepResult) -> None:
        """Records a step's loss, samples, time, scalars and histograms."""
        self.watchdog.note(f"the work after step {step}")
        epoch, epoch_step = self.order.place_of(step)
        samples = self.order.lanes.samples_in_step(epoch_step)
        if result.skipped:
            self.reporter.log(f"step {step:,} is skipped: its loss or a gradient is not finite")
        with named_range("report"):
            counts = self.step_state.report(self.config.train.scales_loss) | self.model.managed.report()
            counts |= self._rates(step) if self.reporter.due(step) else {}
            self.reporter.step(step, epoch, result.means, samples, self.batches.stalled_seconds, counts)
            if self.reporter.due(step):
                self.reporter.scalars(step, lambda: self._norm(result))
            if self.histograms.due(step):
                self.reporter.histograms(step, self.histograms.compute(self.model.weights()))
        if self.profiler.after(step):
            self.reporter.resume_clock()

    def _rates(self, step: int) -> dict[str, float]:
        return {f"rate/{key}": rate for key, rate in self.model.optimizers.rates(step).items()}

    def _norm(self, result: StepResult) -> dict[str, float]:
        """Returns the norm of a step's gradients unless clipping reports the norm already."""
        norm = self.model.optimizers.gradient_norm
        return {"train/gradient_norm": norm()} if result.gradient_norm is None else {}

    def requested_action(self, step: int) -> Action:
        """Returns the action that any rank requests after a step, the same on all ranks; begins a requested profile."""
        with named_range("requests"):
            action = self.stop_requests.all_reduce(self.saver.overdue(), self.profiler.requested)
        if action is Action.PROFILE:
            self.profiler.begin_requested(step)
        return action

    def steps(self) -> Iterator[int]:
        """Yields the steps to take: up to the last, or to the evaluation after which training ends early."""
        for step in range(self.order.steps_done + 1, self.order.last_step + 1):
            if self.reason_to_stop(step - 1):
                return
            yield step

    def reason_to_stop(self, step: int) -> str | None:
        """Returns why training ends early after a step; None if training goes on, or has reached its last step."""
        config, evaluated = self.config.train.stop_early, step == self.order.steps_done or self.evaluator.due(step)
        if config.metric is None or not evaluated or step >= self.order.last_step:
            return None
        return broadcast_from_rank0(self.context, lambda: reason_to_stop(config, self.reporter.evaluations(), step))

    def evaluate(self, step: int, model: nn.Module, split: str, of_step: int | None = None) -> None:
        """Evaluates a split and reports it.

        Args:
            step: Steps done.
            model: The model, not attached to a training pipeline.
            split: validation or test.
            of_step: The step whose weights the model has; None: the last step.

        Raises:
            Stopped: A signal requested a stop.
        """
        with self.model.averaged(), self.model.managed.rewound(), named_range("evaluation"):
            metrics = self.evaluator.evaluate(
                model, split, self.model.managed, partial(self._stop_requested, step, split)
            )
        if metrics is None:
            self.stop(step)
        self.reporter.evaluation(step if of_step is None else of_step, split, metrics)
        self._write_page()

    def _write_page(self) -> None:
        """Writes the page of the run; the time that this takes counts for no step."""
        self.reporter.flush()  # the page is made of the run's files
        if self.context.is_rank0:
            with self.reporter.tolerate_failed_writes():
                write_page(self.directory, self.claimed.checkpoints)
        self.reporter.resume_clock()

    def lacks_evaluation(self) -> bool:
        """Returns whether the run resumes from a step that was saved, but whose evaluation was interrupted."""
        step = self.order.steps_done
        return 0 < step < self.order.last_step and self.evaluator.due(step) and not self.is_validated(step)

    def is_validated(self, step: int) -> bool:
        """Returns whether a step was evaluated on the validation split."""

        def validated() -> bool:
            return any(line["step"] == step and line["split"] == "validation" for line in self.reporter.evaluations())

        return broadcast_from_rank0(self.context, validated)

    def _stop_requested(self, step: int, split: str) -> bool:
        self.watchdog.note(f"the evaluation on {split} after step {step}")
        return self.stop_requests.all_reduce() is Action.STOP

    def save(self, step: int) -> None:
        """Starts to save a checkpoint in the background."""
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
            **self.model.managed.rules(),
        }
        if segment := self.order.segment:
            train_state["segment"] = asdict(segment)
        texts = {"config.toml": to_toml(self.config), "plan.json": json.dumps(self.model.plan_json, indent=2)}
        self.reporter.flush()  # on storage without append: a resumed run does not write the lines up to here again
        with named_range("save"), self.model.managed.rewound():
            self.saver.save(step, self.model.tensors(), train_state, texts)
        self.reporter.resume_clock()

    def stop(self, step: int) -> NoReturn:
        """Ends training before its last step, with a checkpoint if the grace period is long enough to save.

        Raises:
            Stopped: Always.
        """
        self.saver.wait()  # the save in the background may be the save of this step
        left = self.config.checkpoint.grace_seconds - self.stop_requests.waiting_seconds
        # One rank decides: clocks differ, and all ranks have to take part in a save.
        if self.saver.saved_step != step and broadcast_from_rank0(self.context, lambda: self.saver.save_seconds < left):
            self.save(step)
            self.saver.wait()
        outcome = f"{STOPPED_WORD} at step {step}, {self.saved(step)}"
        self.profiler.stop(step)
        self.end("stopped", step, outcome)
        self.reporter.log(f"{outcome}\n\nThe same command resumes it.")
        raise Stopped

    def saved(self, step: int) -> str:
        """Returns words for the newest checkpoint, and for later steps up to `step`, which are lost."""
        first, url = self.saver.saved_step + 1, self.saver.newest_url
        if first > step:
            return f"{SAVED_WORD} {url}" if url else "nothing saved"
        lost = f"step {step} is lost" if first == step else f"steps {first} to {step} are lost"
        # Schedulers look for the word, and read the step at the end of the line.
        return f"{lost}: {f'the newest checkpoint {SAVED_WORD} is {url}' if url else 'there is no checkpoint'}"

    def end(self, state: str, step: int, outcome: str, measured: dict[str, Any] | None = None) -> None:
        """Closes the files of the run and records how it ended.

        Args:
            state: `state` of run.json.
            step: Steps done.
            outcome: The last line, which schedulers read.
            measured: Times of steps and memory, for run.json; a run that took no step keeps those it has.
        """
        self.reporter.close()
        if self.context.is_rank0:
            with self.reporter.tolerate_failed_writes():
                facts = self.directory.facts()
                facts |= {"state": state, "step": step, "outcome": without_secrets(outcome)}
                facts |= {"measured": measured} if measured else {}
                self.directory.write_json("run.json", facts)
            write_outcome(without_secrets(outcome))
            with self.reporter.tolerate_failed_writes():  # last, as a disk may be almost full
                write_page(self.directory, self.claimed.checkpoints)
