"""Saves checkpoints: copies the state to memory, and writes the copy in the background while training continues.

On a CPU, if training waits for whole saves, there is no copy: of tables as large as most of the memory, none could be
made.

`Staging` makes the copy and finds the rows that changed. `Saver` writes it in a thread with a process group of its own,
so that its collectives and those of training cannot meet. Training waits for the copy only.
"""

import json
import time
from collections.abc import Callable, Iterator
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

from trainer.checkpoint.deltas import BLOCK_BYTES, ROWS, VALUES, name_of_changes, packed, rows_differ
from trainer.checkpoint.io import ChecksumWriter
from trainer.checkpoint.retention import expired, named_ends
from trainer.checkpoint.state_dict import State, is_by_row
from trainer.checkpoint.store import STATE, Chain, Checkpoints, FileEntry
from trainer.config.train import CheckpointConfig
from trainer.core.distributed import (
    DistributedContext,
    background_group,
    broadcast_from_rank0,
    gather_to_all,
    local_shards_of,
    placed_shards,
)
from trainer.core.outcome import SAVED_WORD, write_outcome
from trainer.core.progress import PROGRESS, saved_line
from trainer.core.secrets import without_secrets

# Retries after 1, 2 and 4 seconds help with brief failures. An outage is left to the next save, because retries occupy
# the staged copy, which the next save needs. No jitter: all ranks retry the same collective and must wait equally long.
ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 1.0
NO_RETRY_AFTER_SECONDS = 60.0  # libraries of object stores have retried for 15 to 40 seconds before they fail
MOST_IN_DELTAS = 0.5  # largest size of the deltas in a chain, as a share of the whole checkpoint that they build on
PERMANENT = {ENOSPC, EDQUOT, EACCES, EPERM, EROFS}  # errors that a retry cannot cure


# Why not DCP's async_save: it gives its copy away, so a failed save could only be retried with later weights. Its
# default stager also allocates new memory for every save.
class Staging:
    """Copies tensors to the same CPU memory for every save, and finds the rows that changed since the last.

    Rows are compared with the copy. That costs a step nothing and misses no row, whatever changed it, but a save takes
    two to four times as long as the copy alone. Marking rows at each step took 3.6 ms for 26 tables and a batch of
    8,192. TorchRec's tracker of changed rows counts rows that an evaluation looks up, and keeps or sorts all ids.

    Attributes:
        chain: The committed checkpoint whose state the copy holds; None if it holds no committed state.
    """

    def __init__(self) -> None:
        self._staged: State = {}
        self.chain: Chain | None = None

    @torch.no_grad()
    def copy(self, tensors: State) -> State:
        """Returns copies of a rank's tensors. The next call overwrites the same memory.

        Args:
            tensors: This rank's tensors, whole or sharded.
        """
        if self._staged.keys() != tensors.keys():
            self._staged = {name: _empty_like(value) for name, value in tensors.items()}
        for name, value in tensors.items():
            self._copy(name, value)
        return self._staged

    @torch.no_grad()
    def changes(self, tensors: State) -> State:
        """Updates the copy of a rank's tensors, and returns the tensors of a delta on its previous state.

        Args:
            tensors: This rank's tensors, with the same names as before.
        """
        assert self._staged.keys() == tensors.keys(), "these are other tensors"
        found: State = {}
        for name, value in tensors.items():
            if not is_by_row(name):
                self._copy(name, value)
                found[name] = self._staged[name]
                continue
            for staged, (local_shard, offsets) in self._pairs(name, value):
                rows, values = _update(staged, local_shard)
                if len(rows):
                    found[name_of_changes(name, offsets, ROWS)] = packed(rows, len(staged))
                    found[name_of_changes(name, offsets, VALUES)] = values
        return found

    def _copy(self, name: str, value: Tensor) -> None:
        for staged, (local_shard, _) in self._pairs(name, value):
            staged.copy_(local_shard)

    def _pairs(self, name: str, value: Tensor) -> Iterator[tuple[Tensor, tuple[Tensor, list[int]]]]:
        """Yields each local shard that has values, with its offsets, beside its copy."""
        placed = [(shard, offsets) for shard, offsets in placed_shards(value) if shard.numel()]
        return zip(local_shards_of(self._staged[name]), placed, strict=True)


def _update(staged: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
    """Copies the rows that differ; returns their numbers, `[N]` int64, and their values.

    Args:
        staged: The copy, on the CPU.
        now: The local shard, on any device.
    """
    numbers, values = [torch.empty(0, dtype=torch.int64)], [staged[:0]]
    step = max(1, BLOCK_BYTES // (now[:1].numel() * now.element_size()))
    for first in range(0, len(now), step):
        before, block = staged[first : first + step], now[first : first + step]
        rows = rows_differ(before.to(block.device), block).nonzero().view(-1)
        if len(rows):
            changed, rows = block.index_select(0, rows).cpu(), rows.cpu()
            before.index_copy_(0, rows, changed)  # up to 30 times as fast as an assignment
            numbers.append(rows + first)
            values.append(changed)
    return torch.cat(numbers), torch.cat(values)


def _empty_like(value: Tensor) -> Tensor:
    if not isinstance(value, ShardedTensor):
        return torch.empty_like(value, device="cpu")
    return _of_shards(value, lambda shard: torch.empty_like(shard, device="cpu"), device="cpu")


def _as_it_is(value: Tensor) -> Tensor:
    """Returns a tensor on the memory of another, to save while nothing changes it."""
    return _of_shards(value, _alone) if isinstance(value, ShardedTensor) else _alone(value)


def _alone(value: Tensor) -> Tensor:
    """Returns a tensor on the same memory, with a storage of its own on a CPU.

    The tables of a rank are parts of one storage. DCP clones every such part, and keeps the clones until the save ends.
    """
    return torch.from_dlpack(value.detach()) if value.is_cpu else value.detach()


def _of_shards(value: ShardedTensor, make: Callable[[Tensor], Tensor], device: str | None = None) -> ShardedTensor:
    """Returns a tensor of the same shards, with other memory for those of this rank.

    Args:
        value: The tensor.
        make: Returns the memory of a shard.
        device: Device of that memory. Unset: that of the shard.
    """
    metadata = deepcopy(value.metadata())
    # Shards without rows are left out. They have the offsets of the next shard, and offsets identify a shard.
    metadata.shards_metadata = [shard for shard in metadata.shards_metadata if 0 not in shard.shard_sizes]
    for shard in metadata.shards_metadata if device else ():
        assert shard.placement is not None
        shard.placement = _remote_device(f"rank:{shard.placement.rank()}/{device}")
    offsets = {tuple(shard.shard_offsets): shard for shard in metadata.shards_metadata}
    shards = [
        Shard(make(shard.tensor), offsets[tuple(shard.metadata.shard_offsets)])
        for shard in value.local_shards()
        if shard.tensor.numel()
    ]
    group = value._process_group
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata, process_group=group)


class SaveFailed(Exception):
    """A checkpoint was not committed; training continues.

    Args:
        error: The reason.
        where: The beginning of the message.

    Attributes:
        permanent: Whether a retry would not help.
    """

    def __init__(self, error: BaseException, where: str = "") -> None:
        super().__init__(f"{where}{error}")
        self.permanent = isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in PERMANENT)


class LeftGroup(Exception):
    """This rank ended and left its process group while a save was written in the background."""


class Saver:
    """Saves the state of all ranks; every rank calls every method at the same step.

    Args:
        checkpoints: The checkpoints of the run.
        config: When to save and which checkpoints to keep.
        context: This process among the ranks that save together.
        saved_step: Step of the checkpoint that training resumes from; 0 without a checkpoint.
        log: Prints a line on rank 0.
        evaluations: Returns the evaluations so far, on rank 0, to find the best checkpoint.
        check_lock: Raises a StorageError if another job writes to the run.
        staging: The copy of the state; a job keeps it when it opens another saver.

    Attributes:
        saved_step: Step of the newest committed checkpoint that `wait` has seen.
        save_seconds: Duration of the longest save.
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
        staging: Staging,
    ) -> None:
        self._checkpoints, self._config, self._context = checkpoints, config, context
        self._log, self._evaluations, self._check_lock = log, evaluations, check_lock
        self.saved_step, self.save_seconds = saved_step, 0.0
        self._staging, self._group = staging, background_group(context)
        # A thread, because DCP's saver in a process takes 3 seconds to start and hangs if it cannot import the main
        # module.
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

    def overdue(self) -> bool:
        """Returns whether a save is due by the time since the last; only rank 0's clock counts."""
        minutes = self._config.every_minutes
        return self._context.is_rank0 and minutes > 0 and time.monotonic() - self._last_start >= 60 * minutes

    def save(self, step: int, tensors: State, train_state: dict[str, Any], texts: dict[str, str]) -> None:
        """Waits for the save before, copies the state, and writes the copy in the background, or the state at once.

        Args:
            step: Steps done.
            tensors: This rank's tensors, by names that do not depend on the plan.
            train_state: All other state that later steps depend on; the same on every rank, and fit for JSON.
            texts: Contents of small files beside the tensors, by name.
        """
        self.wait()
        self._last_start = time.monotonic()
        chain = self._chain_to_continue(step)
        if chain:
            staged = self._staging.changes(tensors)
        elif self._config.needs_copy:
            staged = self._staging.copy(tensors)
        else:
            staged = {name: _as_it_is(value) for name, value in tensors.items()}
        # Until this save is committed, no checkpoint has the state of the copy. If it fails, the next save finds no
        # chain here and is whole.
        self._staging.chain = None
        texts = {**texts, STATE: json.dumps({"step": step, **train_state}, indent=2)}
        self._pending = self._background.submit(self._save, step, staged, texts, chain)
        if not self._config.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Waits until the save in the background has ended."""
        if self._pending:
            self.saved_step = self._pending.result() or self.saved_step
            self._pending = None

    def close(self) -> None:
        """Waits for the save in the background and ends its thread and group, because a job can open many savers."""
        self.wait()
        self._background.shutdown()
        with suppress(ValueError):  # gone already if the job ends in the middle of a save
            dist.destroy_process_group(self._group)

    def _chain_to_continue(self, step: int) -> Chain | None:
        """Returns the chain that the checkpoint of a step can continue as a delta; None if it must be whole."""
        chain = self._staging.chain
        if chain is None or chain.step == step:  # this save replaces that checkpoint, so it cannot build on it
            return None
        is_long = chain.deltas + 1 >= self._config.full_every
        return None if is_long or chain.delta_bytes > MOST_IN_DELTAS * chain.whole_bytes else chain

    def _save(self, step: int, staged: State, texts: dict[str, str], chain: Chain | None) -> int | None:
        """Writes and commits a checkpoint; returns the step, or None if it could not be saved, which is logged."""
        started = time.monotonic()
        try:
            for attempt in self._attempts(step):
                with attempt:
                    self._staging.chain = self._write(step, staged, texts, chain, started)
        except SaveFailed as error:
            self._log(f"step {step:,}  NOT SAVED: {error}; training continues, and the next save is tried")
            return None
        except LeftGroup:
            self._log(f"step {step:,}  NOT SAVED: this rank ended while it was saved; the next job deletes its files")
            return None
        self.save_seconds = max(self.save_seconds, time.monotonic() - started)
        kind = f", what changed since step {chain.step:,}" if chain else ""
        self._log(f"{saved_line(step)} {self._checkpoints.url(step)} in {time.monotonic() - started:.1f} s{kind}")
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

    def _write(self, step: int, staged: State, texts: dict[str, str], chain: Chain | None, started: float) -> Chain:
        """Tries once to write and commit a checkpoint; returns its chain."""
        self._on_rank0(lambda: self._checkpoints.begin(step))
        try:
            entries = self._write_tensors(self._checkpoints.url(step), staged)
            self._on_rank0(lambda: self._commit(step, entries, texts, chain))
        except SaveFailed as failed:
            self._try_on_rank0(
                lambda: self._checkpoints.remove(step)
            )  # frees space for the next save if the disk is full
            # Rank 0's clock decides, so that either all ranks retry or none does.
            failed.permanent |= broadcast_from_rank0(
                self._context, lambda: time.monotonic() - started > NO_RETRY_AFTER_SECONDS, self._group
            )
            raise
        size = sum(entry["bytes"] for entry in entries.values())
        if chain is None:
            return Chain(step, 0, size, 0)
        return Chain(step, chain.deltas + 1, chain.whole_bytes, chain.delta_bytes + size)

    def _write_tensors(self, url: str, staged: State) -> dict[str, FileEntry]:
        writer = ChecksumWriter(url)
        # The names are flat already. Readers look for them unchanged, even on ranks without shards of a table.
        planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            is_alone = self._context.world_size == 1  # collectives are needless, as in `gather_to_all`
            dcp.save(staged, storage_writer=writer, planner=planner, process_group=self._group, no_dist=is_alone)
        except CheckpointException as failure:  # raised on every rank if any rank fails
            rank, (error, _) = min(failure.failures.items())
            raise SaveFailed(error, f"rank {rank}: ") from failure
        # Without its process group, DCP takes this rank for the only rank. It saves this rank's tensors as if there
        # were no others, without an error. Such a checkpoint must not be committed.
        if not dist.is_initialized():
            raise LeftGroup
        parts = gather_to_all(writer.entries, self._context, self._group)
        return {name: entry for part in parts for name, entry in part.items()}

    def _commit(self, step: int, entries: dict[str, FileEntry], texts: dict[str, str], chain: Chain | None) -> None:
        self._check_lock()  # as late as possible: if another job took over, its checkpoint must not be replaced
        self._checkpoints.commit(step, entries, texts, chain.step if chain else None)
        with suppress(OSError):  # the checkpoint is committed all the same
            write_outcome(f"{SAVED_WORD} {without_secrets(self._checkpoints.url(step))}")
        PROGRESS.saved(step)

    def _prune(self) -> None:
        def prune() -> None:
            keep, predecessors = self._config.keep, self._checkpoints.with_predecessors()
            steps = [*predecessors]
            ends = named_ends(self._checkpoints, steps) if keep.segments else {}
            # The newest first: if this is interrupted, no delta has lost its predecessor.
            for step in reversed(expired(keep, steps, self._evaluations(), ends, predecessors)):
                self._checkpoints.remove(step)

        if error := self._try_on_rank0(prune):
            self._log(f"an old checkpoint cannot be deleted: {error}")

    def _on_rank0(self, act: Callable[[], object]) -> None:
        """Calls `act` on rank 0; raises SaveFailed on every rank if it fails."""
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
