"""When and how training saves its state: a copy in memory, written while training goes on."""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS
from typing import Any

import pydantic
import torch.distributed.checkpoint as dcp
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trainer.checkpoint import STATE, Checkpoints
from trainer.checkpoint_files import ChecksumWriter
from trainer.distributed import Ranks, background_group, from_main, gather_to_all
from trainer.manifest import FileEntry
from trainer.retention import Retention
from trainer.section import Section
from trainer.snapshot import Snapshot
from trainer.state import State

ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 1.0
PATIENCE_SECONDS = 60.0  # a library of a cloud has tried again by itself for a while before it fails
LASTING = {ENOSPC, EDQUOT, EACCES, EPERM, EROFS}  # errors that trying again in a moment does not help against


class CheckpointConfig(Section):
    """When training saves its state, and which checkpoints stay."""

    every_steps: pydantic.NonNegativeInt = 0
    """Save every so many steps. 0: only at the end."""
    every_minutes: pydantic.NonNegativeFloat = 0.0
    """Save when so many minutes have passed since the last save. 0: never for that reason."""
    asynchronous: bool = True
    """Write while training goes on, from a copy in memory that takes as much as the state. Off: training waits."""
    keep: Retention = Retention()
    grace_seconds: pydantic.NonNegativeFloat = 120.0
    """Time between a signal that asks to stop and the kill. A job whose saves take longer leaves without one."""


class SaveFailed(Exception):
    """A checkpoint was not committed. What it was to hold is not lost to training, which goes on.

    Args:
        reason: For people.
        lasting: Whether trying again in a moment is no use.
    """

    def __init__(self, reason: str, lasting: bool) -> None:
        super().__init__(reason)
        self.lasting = lasting


class Saver:
    """Saves the state of all ranks into a run's checkpoints; every rank calls every method at the same step.

    Args:
        checkpoints: Where to.
        config: When, and what to keep.
        ranks: This process among the ranks that save together.
        saved_step: Steps done in the checkpoint that training started from; 0 without one.
        say: Tells people something, on the main rank.
        scores: Returns the evaluations so far, on the main rank, for the best checkpoint to be kept.
        check: Raises an OSError if this job must not write any more.

    Attributes:
        saved_step: Steps done in the newest committed checkpoint that `wait` has seen.
        save_seconds: How long the longest save took.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        config: CheckpointConfig,
        ranks: Ranks,
        saved_step: int,
        say: Callable[[str], None],
        scores: Callable[[], list[dict[str, Any]]],
        check: Callable[[], None],
    ) -> None:
        self._checkpoints, self._config, self._ranks = checkpoints, config, ranks
        self._say, self._scores, self._check = say, scores, check
        self.saved_step, self.save_seconds = saved_step, 0.0
        self._snapshot, self._group = Snapshot(), background_group()
        self._background = ThreadPoolExecutor(1, "save")
        self._pending: Future[int | None] | None = None
        self._last_start = time.monotonic()

    @property
    def newest_url(self) -> str | None:
        """Where the newest committed checkpoint is that `wait` has seen; None without one."""
        return self._checkpoints.url(self.saved_step) if self.saved_step else None

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return self._pending is not None and not self._pending.done()

    def due(self, step: int) -> bool:
        """Tells whether to save after a step because of its number."""
        return self._config.every_steps > 0 and step % self._config.every_steps == 0

    def overdue(self) -> bool:
        """Tells whether to save because of the time, on this rank."""
        minutes = self._config.every_minutes
        return self._ranks.is_main and minutes > 0 and time.monotonic() - self._last_start >= 60 * minutes

    def save(self, step: int, tensors: State, progress: dict[str, Any], texts: dict[str, str]) -> None:
        """Saves in the background; returns once the state is copied, before which the save before it has ended.

        Args:
            step: Steps done.
            tensors: This rank's tensors, by names that do not depend on the plan.
            progress: Everything else that changes the future; the same on every rank, JSON-able.
            texts: Files to lie beside the tensors, by name.
        """
        self.wait()
        self._last_start = time.monotonic()
        copies = self._snapshot.take(tensors)
        texts = {**texts, STATE: json.dumps({"step": step, **progress}, indent=2)}
        self._pending = self._background.submit(self._save, step, copies, texts)
        if not self._config.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written any more."""
        if self._pending:
            self.saved_step = self._pending.result() or self.saved_step
            self._pending = None

    def close(self) -> None:
        """Ends the background thread, once it has written what it has to."""
        self.wait()
        self._background.shutdown()

    def _save(self, step: int, copies: State, texts: dict[str, str]) -> int | None:
        """Returns the step if it could be saved; if not, people are told."""
        started = time.monotonic()
        try:
            for attempt in self._attempts(step):
                with attempt:
                    self._write(step, copies, texts, started)
        except SaveFailed as error:
            self._say(f"step {step:,}  NOT SAVED: {error}; training goes on, and the next save is tried")
            return None
        self.save_seconds = max(self.save_seconds, time.monotonic() - started)
        self._say(f"step {step:,}  saved {self._checkpoints.url(step)} in {time.monotonic() - started:.1f} s")
        self._prune()
        return step

    def _attempts(self, step: int) -> Retrying:
        return Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, SaveFailed) and not error.lasting),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(FIRST_PAUSE_SECONDS),
            before_sleep=lambda state: self._say(
                f"step {step:,}  saving is tried again in {state.upcoming_sleep:.0f} s: {state.outcome.exception()}"  # pyrefly: ignore
            ),
            reraise=True,
        )

    def _write(self, step: int, copies: State, texts: dict[str, str], started: float) -> None:
        self._on_main(lambda: self._checkpoints.begin(step))
        try:
            entries = self._write_tensors(self._checkpoints.url(step), copies)
            self._on_main(lambda: self._commit(step, entries, texts))
        except SaveFailed as failed:
            self._try_on_main(lambda: self._checkpoints.remove(step))
            failed.lasting |= from_main(self._ranks, lambda: time.monotonic() - started > PATIENCE_SECONDS, self._group)
            raise

    def _write_tensors(self, url: str, copies: State) -> dict[str, FileEntry]:
        writer = ChecksumWriter(url)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            dcp.save(copies, storage_writer=writer, planner=planner, process_group=self._group)
        except CheckpointException as failure:  # raised on every rank if one fails
            rank, (error, _) = min(failure.failures.items())
            raise _failed(error, f"rank {rank}: ") from failure
        parts = gather_to_all(writer.entries, self._ranks, self._group)
        return {name: entry for part in parts for name, entry in part.items()}

    def _commit(self, step: int, entries: dict[str, FileEntry], texts: dict[str, str]) -> None:
        self._check()
        self._checkpoints.commit(step, entries, texts)

    def _prune(self) -> None:
        def prune() -> None:
            for step in self._config.keep.superfluous(self._checkpoints.steps(), self._scores()):
                self._checkpoints.remove(step)

        if error := self._try_on_main(prune):
            self._say(f"an old checkpoint cannot be deleted: {error}")

    def _on_main(self, act: Callable[[], object]) -> None:
        """Does something on the main rank; raises SaveFailed on every rank if it fails."""
        if error := self._try_on_main(act):
            raise _failed(error)

    def _try_on_main(self, act: Callable[[], object]) -> OSError | None:
        def attempt() -> OSError | None:
            try:
                act()
            except OSError as error:
                return error
            return None

        return from_main(self._ranks, attempt, self._group)


def _failed(error: BaseException, where: str = "") -> SaveFailed:
    lasting = isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in LASTING)
    return SaveFailed(f"{where}{error}", lasting)
