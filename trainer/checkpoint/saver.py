"""When and how training saves its state: a copy in memory, written while training goes on."""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS
from typing import Any

import torch.distributed.checkpoint as dcp
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trainer.checkpoint.io import ChecksumWriter
from trainer.checkpoint.manifest import FileEntry
from trainer.checkpoint.retention import expired
from trainer.checkpoint.staging import StagingBuffers
from trainer.checkpoint.state_dict import State
from trainer.checkpoint.store import STATE, Checkpoints
from trainer.config.checkpoint import CheckpointConfig
from trainer.core.distributed import DistributedContext, background_group, broadcast_from_rank0, gather_to_all

ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 1.0
PATIENCE_SECONDS = 60.0  # a library of a cloud has tried again by itself for a while before it fails
PERMANENT = {ENOSPC, EDQUOT, EACCES, EPERM, EROFS}  # errors that trying again in a moment does not help against


class SaveFailed(Exception):
    """A checkpoint was not committed. What it was to hold is not lost to training, which goes on.

    Args:
        reason: For people.
        permanent: Whether trying again in a moment is no use.
    """

    def __init__(self, reason: str, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent


class Saver:
    """Saves the state of all ranks into a run's checkpoints; every rank calls every method at the same step.

    Args:
        checkpoints: Where to.
        config: When, and what to keep.
        context: This process among the ranks that save together.
        saved_step: Steps done in the checkpoint that training started from; 0 without one.
        log: Tells people something, on the main rank.
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
        context: DistributedContext,
        saved_step: int,
        log: Callable[[str], None],
        scores: Callable[[], list[dict[str, Any]]],
        check: Callable[[], None],
    ) -> None:
        self._checkpoints, self._config, self._context = checkpoints, config, context
        self._say, self._scores, self._check = log, scores, check
        self.saved_step, self.save_seconds = saved_step, 0.0
        self._staging, self._group = StagingBuffers(), background_group()
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
        return self._context.is_rank0 and minutes > 0 and time.monotonic() - self._last_start >= 60 * minutes

    def save(self, step: int, tensors: State, train_state: dict[str, Any], texts: dict[str, str]) -> None:
        """Saves in the background; returns once the state is copied, before which the save before it has ended.

        Args:
            step: Steps done.
            tensors: This rank's tensors, by names that do not depend on the plan.
            train_state: Everything else that changes the future; the same on every rank, JSON-able.
            texts: Files to lie beside the tensors, by name.
        """
        self.wait()
        self._last_start = time.monotonic()
        copies = self._staging.stage(tensors)
        texts = {**texts, STATE: json.dumps({"step": step, **train_state}, indent=2)}
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
            retry=retry_if_exception(lambda error: isinstance(error, SaveFailed) and not error.permanent),
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
            failed.permanent |= broadcast_from_rank0(
                self._context, lambda: time.monotonic() - started > PATIENCE_SECONDS, self._group
            )
            raise

    def _write_tensors(self, url: str, copies: State) -> dict[str, FileEntry]:
        writer = ChecksumWriter(url)
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            dcp.save(copies, storage_writer=writer, planner=planner, process_group=self._group)
        except CheckpointException as failure:  # raised on every rank if one fails
            rank, (error, _) = min(failure.failures.items())
            raise _failed(error, f"rank {rank}: ") from failure
        parts = gather_to_all(writer.entries, self._context, self._group)
        return {name: entry for part in parts for name, entry in part.items()}

    def _commit(self, step: int, entries: dict[str, FileEntry], texts: dict[str, str]) -> None:
        self._check()
        self._checkpoints.commit(step, entries, texts)

    def _prune(self) -> None:
        def prune() -> None:
            for step in expired(self._config.keep, self._checkpoints.steps(), self._scores()):
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

        return broadcast_from_rank0(self._context, attempt, self._group)


def _failed(error: BaseException, where: str = "") -> SaveFailed:
    permanent = isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in PERMANENT)
    return SaveFailed(f"{where}{error}", permanent)
