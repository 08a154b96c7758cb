"""Ranks, devices, the process group, local shards; the only file that reads the environment of torchrun and TorchX."""

import ctypes
import gc
import os
import pickle
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from trainer.core.console import plural
from trainer.core.errors import REPORTED_ERRORS, InputError, report_error
from trainer.core.timeouts import AT_WORK_SECONDS, COLLECTIVE_SECONDS, FIRST_ERROR_SECONDS, joining

T = TypeVar("T")
# Messages of the plain RuntimeError that Gloo and NCCL raise when the process at the other end is gone.
LOST_PEER = re.compile(
    "closed by peer|reset by peer|Broken pipe|connectFullMesh failed|remote process exited|Failed to recv, got 0 bytes"
)
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of mallopt, in malloc.h
NEVER = -1
BESIDE_BYTES = 1 << 16  # smallest buffer to send beside a pickled object; smaller ones are pickled with it
GLOO_GROUPS, OTHER_FILES = 8, 1024  # at most: of all ranks, of requests, saves, managed ids, preflight, and TorchRec's


@dataclass(frozen=True)
class DistributedContext:
    """This process among the ranks of the job.

    Attributes:
        rank: This rank, in `[0, world_size)`.
        world_size: Number of ranks in the job.
        local_rank: This rank among the ranks of its node.
        local_world_size: Number of ranks on this node.
        device: The device that this rank computes on.
        collective_timeout: The job ends if a rank does not join a collective in this time.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    device: torch.device
    collective_timeout: timedelta = timedelta(seconds=COLLECTIVE_SECONDS)

    @property
    def is_rank0(self) -> bool:
        """Whether this is rank 0, which prints and writes the run's small files."""
        return self.rank == 0


def current_context() -> DistributedContext:
    """Reads the context from torchrun's environment; without torchrun, this is the only rank of the job."""
    rank, world, local, local_world = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    )
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    return DistributedContext(rank, world, local, local_world, device)


@contextmanager
def process_group(collective_seconds: float = COLLECTIVE_SECONDS) -> Iterator[DistributedContext]:
    """Joins the job's process group, NCCL with a GPU and Gloo without, and leaves the group at the end.

    Args:
        collective_seconds: The job ends if a rank does not join a collective in this time.

    Raises:
        InputError: The job has more ranks on this host than the host has GPUs.
        LostRankError: Another rank cannot be reached.
    """
    context = replace(current_context(), collective_timeout=timedelta(seconds=collective_seconds))
    if context.device.type == "cuda":
        check_gpus(context.local_world_size, torch.cuda.device_count())
        torch.cuda.set_device(context.device)  # object collectives of NCCL use the current device
    else:
        _keep_freed_memory()
    _allow_connections(context.world_size)
    cores = len(os.sched_getaffinity(0))
    # torch starts a thread per core, and more threads than cores made a step three times slower (505, not 170 ms).
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or max(1, cores // context.local_world_size)))
    # A store in memory for a single rank: without torchrun, the default store would need a free port and its address in
    # the environment.
    alone: dict[str, Any] = {} if context.world_size > 1 else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    backend = dist.get_default_backend_for_device(context.device)
    rank0 = rank0_host(), int(os.environ.get("MASTER_PORT", 0))
    # A single rank checks for all ranks of its host.
    seconds = context.collective_timeout.total_seconds() if context.rank >= context.local_world_size else 0
    with joining(context.rank, *rank0, 0 if context.local_rank else seconds):
        dist.init_process_group(backend, timeout=context.collective_timeout, **alone)
    try:
        yield context
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # frames hold tensors and the group, which is destroyed below
        _explain(error, context)
        raise
    finally:
        gc.collect()  # models in cycles and tracebacks keep the group's threads alive, which must end before Python
        dist.destroy_process_group()


def _allow_connections(ranks: int) -> None:
    """Raises the limit of open files, as far as allowed, to the number that connections to all ranks need.

    Each Gloo group connects every rank with every other rank; the usual limit of 1,024 files suffices for 400 ranks.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OTHER_FILES + GLOO_GROUPS * ranks
    if resource.RLIM_INFINITY != now < needed:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (needed if most == resource.RLIM_INFINITY else min(needed, most), most)
        )


def check_gpus(ranks: int, gpus: int) -> None:
    """Refuses more ranks on a host than it has GPUs.

    Raises:
        InputError: Some rank would have no GPU.
    """
    if ranks > gpus:
        raise InputError(
            f"the job has {plural(ranks, 'rank')} on this host, which has {plural(gpus, 'GPU')}; each rank needs one: "
            f"use at most -j NODESx{gpus}, or hide the GPUs from the job to train on CPUs: CUDA_VISIBLE_DEVICES="
        )


def _keep_freed_memory() -> None:
    """Makes glibc keep the freed memory of tensors on a CPU for the tensors of the next step.

    By default glibc returns tensors of 32 MiB and more to the kernel, which maps and zeroes every page again in the
    next step: DIN on histories of 50 items trained half as fast, and the time of a step varied by 30 %.
    jemalloc and tcmalloc have to be loaded before Python, and come with no Python package.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)  # musl has none
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, NEVER)


def _explain(error: BaseException, context: DistributedContext) -> None:
    """Reports an error to torchrun, unless the error only follows from the error of another rank.

    torchrun shows the error of the first rank that left. So a rank that lost its peer waits for torchrun to find the
    failed rank and to end the others.

    Raises:
        SystemExit: The error follows from another rank's error.
    """
    if isinstance(error, RuntimeError) and LOST_PEER.search(str(error)):
        print(
            f"rank {context.rank} lost the connection to another rank, whose error counts", file=sys.stderr, flush=True
        )
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's SIGTERM has to end this wait, not request a stop
        time.sleep(FIRST_ERROR_SECONDS)
        raise SystemExit(1) from None
    if not isinstance(error, SystemExit):
        get_error_handler().record_exception(error)


def broadcast_from_rank0(
    context: DistributedContext, make: Callable[[], T], group: dist.ProcessGroup | None = None
) -> T:
    """Runs `make` on rank 0 and returns its result on every rank.

    Raises:
        InputError: The error of `make`, if there is only one rank.
        SystemExit: With more ranks, after rank 0 has reported the error of `make`.
    """
    if context.world_size == 1:
        return make()
    outcome: list[Any] = [None, None]
    if context.is_rank0:
        try:
            outcome[0] = make()
        except REPORTED_ERRORS as error:  # reported before any rank leaves: torchrun ends all when the first leaves
            get_error_handler().record_exception(error)
            outcome[1] = report_error(error)
    outcome = _broadcast(outcome, context, group)
    if outcome[1] is not None:
        raise SystemExit(outcome[1])
    return outcome[0]


def broadcast_object(context: DistributedContext, value: T | None) -> T | None:
    """Returns rank 0's value on every rank."""
    return _broadcast([value], context)[0]


def _broadcast(values: list[Any], context: DistributedContext, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Returns rank 0's values on every rank.

    Large buffers of bytes, such as the columns of a million files, are sent beside the pickled values, as they are.
    """
    large: list[pickle.PickleBuffer] = []
    content = pickle.dumps(
        values, 5, buffer_callback=lambda one: one.raw().nbytes < BESIDE_BYTES or bool(large.append(one))
    )
    sent: list[Any] = [content, [one.raw().nbytes for one in large]]
    dist.broadcast_object_list(sent, src=0, group=group)
    device = context.device if group is None else torch.device("cpu")  # other groups are on the CPU
    beside = [torch.frombuffer(bytearray(one), dtype=torch.uint8) for one in large]
    beside = [one.to(device) for one in beside or map(partial(torch.empty, dtype=torch.uint8), sent[1])]
    for buffer in beside:
        dist.broadcast(buffer, src=0, group=group)
    return values if context.is_rank0 else pickle.loads(sent[0], buffers=[one.cpu().numpy() for one in beside])


def broadcast_when_done(context: DistributedContext, make: Callable[[], T]) -> T:
    """As `broadcast_from_rank0`, for work that may outlast a collective, such as reading all data.

    Rank 0 calls `make` in a thread, and meanwhile signals to the other ranks that it is at work.
    """
    if context.world_size == 1:
        return make()
    worker = ThreadPoolExecutor(1)
    result = worker.submit(make) if context.is_rank0 else Future()
    worker.shutdown(wait=False)
    seconds = min(AT_WORK_SECONDS, context.collective_timeout.total_seconds() / 4)
    while not broadcast_from_rank0(context, lambda: bool(wait([result], seconds).done)):
        pass
    return broadcast_from_rank0(context, result.result)


def sum_over_ranks(values: torch.Tensor, context: DistributedContext) -> torch.Tensor:
    """Returns the sum of a tensor over all ranks, on the CPU."""
    if context.world_size == 1:
        return values.cpu()
    total = values.to(context.device, copy=True)  # which is summed in place
    dist.all_reduce(total)
    return total.cpu()


def gather_to_all(value: T, context: DistributedContext, group: dist.ProcessGroup | None = None) -> list[T]:
    """Returns every rank's value, in the order of the ranks."""
    # Gloo copies what is gathered in a thread of its own, for which OpenMP starts a second team. From then on a process
    # has more OpenMP threads than cores, and all of them sleep between operations instead of spinning: after the first
    # evaluation each step of MovieLens took 6.0 ms on one rank, not 3.6.
    if context.world_size == 1:
        return [value]
    values: list[Any] = [None] * context.world_size
    dist.all_gather_object(values, value, group)
    return values


def gather_to_rank0(value: T, context: DistributedContext) -> list[T]:
    """Returns every rank's value on rank 0, in the order of the ranks; other ranks get only their own value."""
    if context.world_size == 1:
        return [value]
    values: list[Any] | None = [None] * context.world_size if context.is_rank0 else None
    dist.gather_object(value, values)
    return [value] if values is None else values


def background_group(context: DistributedContext) -> dist.ProcessGroup:
    """Returns a group of all ranks on the CPU, for collectives outside training.

    Collectives of one group have to start in the same order on every rank, which threads cannot guarantee. NCCL would
    also put the collectives of a save into the GPU's queue, behind the steps.
    """
    group = dist.new_group(backend="gloo", timeout=context.collective_timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group


def limit_collectives(context: DistributedContext) -> None:
    """Sets the timeout of all groups to the job's timeout.

    TorchRec makes groups within and across nodes without a timeout; Gloo would wait in these for half an hour.
    """
    for group in distributed_c10d._world.pg_map:
        distributed_c10d._set_pg_timeout(context.collective_timeout, group)


def rank0_host() -> str:
    """Returns the host of rank 0, by torchrun's name."""
    return os.environ.get("MASTER_ADDR", "localhost")


def torchx_job() -> str | None:
    """Returns the handle of this process's TorchX job, None outside TorchX."""
    return os.environ.get("TORCHX_JOB_ID")


def local_shards_of(value: Tensor) -> list[Tensor]:
    """Returns the local shards of a tensor; a whole tensor is one shard."""
    return [tensor for tensor, _ in placed_shards(value)]


def placed_shards(value: Tensor) -> list[tuple[Tensor, list[int]]]:
    """Returns the local shards of a tensor, each with its offsets; a whole tensor is one shard."""
    if isinstance(value, ShardedTensor):
        return [(shard.tensor, shard.metadata.shard_offsets) for shard in value.local_shards()]
    return [(value, [0] * value.dim())]


def with_rows_elsewhere(
    values: Tensor, owners: Sequence[tuple[range, int]], context: DistributedContext
) -> Tensor | ShardedTensor:
    """Makes a sharded tensor by rows from this rank's `values`, as views.

    Args:
        values: The values of this rank's rows, on the CPU, `[rows of this rank]`, in the order of `owners`.
        owners: All rows, as consecutive rows with the rank that has them.
        context: This process among the ranks.
    """
    if context.world_size == 1:
        return values
    shards = [ShardMetadata([rows.start], [len(rows)], f"rank:{rank}/cpu") for rows, rank in owners if rows]
    here = [shard for shard in shards if shard.placement.rank() == context.rank]  # pyrefly: ignore[missing-attribute]
    parts = values.split([shard.shard_sizes[0] for shard in here])
    metadata = ShardedTensorMetadata(
        shards, torch.Size([sum(len(rows) for rows, _ in owners)]), TensorProperties(values.dtype)
    )
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        [Shard(part, shard) for part, shard in zip(parts, here, strict=True)], metadata
    )
