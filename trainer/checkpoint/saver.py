"""Saves checkpoints: stages the state in memory and writes it in the background."""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from errno import EACCES, EDQUOT, ENOSPC, EPERM, EROFS
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential
from torch import Tensor
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.remote_device import _remote_device

from trainer.checkpoint.io import ChecksumWriter
from trainer.checkpoint.retention import expired
from trainer.checkpoint.state_dict import State
from trainer.checkpoint.store import STATE, Checkpoints, FileEntry
from trainer.config.checkpoint import CheckpointConfig
from trainer.core.distributed import DistributedContext, background_group, broadcast_from_rank0, gather_to_all
from trainer.core.local_shards import local_shards_of
from trainer.core.outcome import SAVED_WORD, write_outcome
from trainer.core.secrets import without_secrets

# Retries after 1, 2 and 4 seconds, for brief failures. An outage is left to the next save: retries hold the staged
# copy, which the next save waits for. No jitter: every rank retries the same collective and must wait equally long.
ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 1.0
NO_RETRY_AFTER_SECONDS = 60.0  # the library of an object store has itself retried for 15 to 40 seconds before it fails
PERMANENT = {ENOSPC, EDQUOT, EACCES, EPERM, EROFS}  # errors that a retry does not cure


class SaveFailed(Exception):
    """A checkpoint was not committed; training continues.

    Args:
        error: The reason.
        where: What the message begins with.

    Attributes:
        permanent: Whether a retry would not help.
    """

    def __init__(self, error: BaseException, where: str = "") -> None:
        super().__init__(f"{where}{error}")
        self.permanent = isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in PERMANENT)


class LeftGroup(Exception):
    """This rank has left its process group, as it ends, while a save was written in the background."""


class Saver:
    """Saves the state of all ranks; every rank calls every method at the same step.

    Args:
        checkpoints: The checkpoints of the run.
        config: When to save, and which checkpoints to keep.
        context: This process among the ranks that save together.
        saved_step: Steps done in the checkpoint that training resumes from; 0 without a checkpoint.
        log: Prints a line on rank 0.
        evaluations: Returns the evaluations so far, on rank 0, to find the best checkpoint.
        check_lock: Raises a StorageError if another job writes to the run.

    Attributes:
        saved_step: Steps done in the newest committed checkpoint that `wait` has seen.
        save_seconds: Time of the longest save.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        config: CheckpointConfig,
        context: DistributedContext,
        saved_step: int,
        log: Callable[[str], None],
        evaluations: Callable[[], list[dict[str, Any]]],
        check_lock: Callable[[], None],
    ) -> None:
        self._checkpoints, self._config, self._context = checkpoints, config, context
        self._log, self._evaluations, self._check_lock = log, evaluations, check_lock
        self.saved_step, self.save_seconds = saved_step, 0.0
        self._staging, self._group = StagingBuffers(), background_group(context)
        # A thread: DCP's saver in a process takes 3 seconds to start, and hangs if the main module cannot be imported.
        self._background = ThreadPoolExecutor(1, "save")
        self._pending: Future[int | None] | None = None
        self._last_start = time.monotonic()

    @property
    def newest_url(self) -> str | None:
        """URL of the newest committed checkpoint that `wait` has seen; None without a checkpoint."""
        return self._checkpoints.url(self.saved_step) if self.saved_step else None

    @property
    def is_busy(self) -> bool:
        """Whether a save is being written."""
        return self._pending is not None and not self._pending.done()

    def due(self, step: int) -> bool:
        """Returns whether to save after a step because of its number."""
        return self._config.every_steps > 0 and step % self._config.every_steps == 0

    def overdue(self) -> bool:
        """Returns whether to save because of the time; only rank 0's clock counts."""
        minutes = self._config.every_minutes
        return self._context.is_rank0 and minutes > 0 and time.monotonic() - self._last_start >= 60 * minutes

    def save(self, step: int, tensors: State, train_state: dict[str, Any], texts: dict[str, str]) -> None:
        """Saves in the background; waits for the save before it, and for the copy of the state.

        Args:
            step: Steps done.
            tensors: This rank's tensors, by names that do not depend on the plan.
            train_state: The rest of the state that later steps depend on; the same on every rank, JSON-able.
            texts: Contents of small files beside the tensors, by name.
        """
        self.wait()
        self._last_start = time.monotonic()
        staged = self._staging.stage(tensors)
        texts = {**texts, STATE: json.dumps({"step": step, **train_state}, indent=2)}
        self._pending = self._background.submit(self._save, step, staged, texts)
        if not self._config.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Waits until the save in the background has ended."""
        if self._pending:
            self.saved_step = self._pending.result() or self.saved_step
            self._pending = None

    def close(self) -> None:
        """Waits for the save in the background, and ends its thread and its group, as runs over segments have many."""
        self.wait()
        self._background.shutdown()
        with suppress(ValueError):  # it is gone already where the job ends in the middle of a save
            dist.destroy_process_group(self._group)

    def _save(self, step: int, staged: State, texts: dict[str, str]) -> int | None:
        """Returns the step, or None if it could not be saved, which is logged."""
        started = time.monotonic()
        try:
            for attempt in self._attempts(step):
                with attempt:
                    self._write(step, staged, texts, started)
        except SaveFailed as error:
            self._log(f"step {step:,}  NOT SAVED: {error}; training continues, and the next save is tried")
            return None
        except LeftGroup:
            self._log(f"step {step:,}  NOT SAVED: this rank ended while it was saved; the next job deletes its files")
            return None
        self.save_seconds = max(self.save_seconds, time.monotonic() - started)
        self._log(f"step {step:,}  saved {self._checkpoints.url(step)} in {time.monotonic() - started:.1f} s")
        self._prune()
        return step

    def _attempts(self, step: int) -> Retrying:
        return Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, SaveFailed) and not error.permanent),
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_exponential(FIRST_PAUSE_SECONDS),
            before_sleep=lambda state: self._log(
                f"step {step:,}  saving is tried again in {state.upcoming_sleep:.0f} s: {state.outcome.exception()}"  # pyrefly: ignore
            ),
            reraise=True,
        )

    def _write(self, step: int, staged: State, texts: dict[str, str], started: float) -> None:
        self._on_rank0(lambda: self._checkpoints.begin(step))
        try:
            entries = self._write_tensors(self._checkpoints.url(step), staged)
            self._on_rank0(lambda: self._commit(step, entries, texts))
        except SaveFailed as failed:
            self._try_on_rank0(lambda: self._checkpoints.remove(step))  # on a full disk, space for the next save
            # Rank 0's clock decides, so that all ranks retry or none.
            failed.permanent |= broadcast_from_rank0(
                self._context, lambda: time.monotonic() - started > NO_RETRY_AFTER_SECONDS, self._group
            )
            raise

    def _write_tensors(self, url: str, staged: State) -> dict[str, FileEntry]:
        writer = ChecksumWriter(url)
        # Names are flat already, and a reader without shards of a table must find them as they are.
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            is_alone = self._context.world_size == 1  # and has nobody to ask, as in `gather_to_all`
            dcp.save(staged, storage_writer=writer, planner=planner, process_group=self._group, no_dist=is_alone)
        except CheckpointException as failure:  # raised on every rank if one fails
            rank, (error, _) = min(failure.failures.items())
            raise SaveFailed(error, f"rank {rank}: ") from failure
        # Outside of its process group a rank is the only one for DCP, which then saves its tensors as if they were all
        # there are, without an error. Nobody may commit that.
        if not dist.is_initialized():
            raise LeftGroup
        parts = gather_to_all(writer.entries, self._context, self._group)
        return {name: entry for part in parts for name, entry in part.items()}

    def _commit(self, step: int, entries: dict[str, FileEntry], texts: dict[str, str]) -> None:
        self._check_lock()  # as late as possible: a job that took over must not find its checkpoint replaced
        self._checkpoints.commit(step, entries, texts)
        with suppress(OSError):  # the checkpoint is there all the same
            write_outcome(f"{SAVED_WORD} {without_secrets(self._checkpoints.url(step))}")

    def _prune(self) -> None:
        def prune() -> None:
            for step in expired(self._config.keep, self._checkpoints.steps(), self._evaluations()):
                self._checkpoints.remove(step)

        if error := self._try_on_rank0(prune):
            self._log(f"an old checkpoint cannot be deleted: {error}")

    def _on_rank0(self, act: Callable[[], object]) -> None:
        """Acts on rank 0; raises SaveFailed on every rank if the act fails."""
        if error := self._try_on_rank0(act):
            raise SaveFailed(error)

    def _try_on_rank0(self, act: Callable[[], object]) -> OSError | None:
        def attempt() -> OSError | None:
            try:
                act()
            except OSError as error:
                return error
            return None

        return broadcast_from_rank0(self._context, attempt, self._group)


# DCP's async_save stages, too, but gives the copy away: a failed save could only be retried with later weights. Its
# default stager also allocates new memory for every save.
class StagingBuffers:
    """Copies tensors to CPU memory, the same memory for every save."""

    def __init__(self) -> None:
        self._staged: State = {}

    @torch.no_grad()
    def stage(self, tensors: State) -> State:
        """Returns copies of a rank's tensors; the next call overwrites them.

        Args:
            tensors: This rank's tensors, whole or sharded.
        """
        if self._staged.keys() != tensors.keys():
            self._staged = {name: _empty_like(value) for name, value in tensors.items()}
        for name, value in tensors.items():
            local_shards = [local_shard for local_shard in local_shards_of(value) if local_shard.numel()]
            for staged, local_shard in zip(local_shards_of(self._staged[name]), local_shards, strict=True):
                staged.copy_(local_shard)
        return self._staged


def _empty_like(value: Tensor) -> Tensor:
    if not isinstance(value, ShardedTensor):
        return torch.empty_like(value, device="cpu")
    metadata = deepcopy(value.metadata())
    # A shard without rows begins where the next one does, and shards are identified by their offsets, here and in DCP.
    metadata.shards_metadata = [shard for shard in metadata.shards_metadata if 0 not in shard.shard_sizes]
    for shard in metadata.shards_metadata:
        assert shard.placement is not None
        shard.placement = _remote_device(f"rank:{shard.placement.rank()}/cpu")
    offsets = {tuple(shard.shard_offsets): shard for shard in metadata.shards_metadata}
    shards = [
        Shard(torch.empty_like(shard.tensor, device="cpu"), offsets[tuple(shard.metadata.shard_offsets)])
        for shard in value.local_shards()
        if shard.tensor.numel()
    ]
    group = value._process_group
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata, process_group=group)
