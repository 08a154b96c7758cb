"""The memory of each rank under a plan, by kind: what is there between steps, and the most that a build or step adds.

A rank's peak is not the sum of all that it ever allocates: the dense part has its activations when embeddings have been
exchanged, and tables their gradients when activations are gone. So the phases of a step are counted one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from torchrec.distributed.types import ShardingPlan

from trainer.config.root import Config
from trainer.models.table_init import BLOCK_VALUES
from trainer.plan.activations import DenseMemory, dense_memory
from trainer.plan.plan_file import shards_of, table_plans
from trainer.plan.search.options import KERNELS, KINDS, Options
from trainer.plan.search.problem import Ranks, Table
from trainer.plan.search.shard_memory import LARGEST_OF_RANK, memory_by_kind
from trainer.plan.search.solve import Solution
from trainer.plan.sharding_plan import planned_table

GIB = 1024**3
BYTES_TO_INITIALIZE = BLOCK_VALUES * (4 * 8 + 4)  # counters and bits of a block, and its values
BATCHES_ON_GPU = 3  # that TorchRec's pipeline copies ahead
INT, FLOAT = 4, 4


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Memory beside what the allocator gives out, per rank; figures of a calibration replace these.

    Attributes:
        context: Bytes of the process on its device: CUDA's context and kernels, or Python with its libraries.
        communication: Bytes of NCCL's buffers where there are several ranks.
        fragmentation: Part of what is given out that the allocator holds beside it.
    """

    context: float
    communication: float
    fragmentation: float


# CUDA: the middle of what its context (0.3 to 0.6 GiB), NCCL (0.1 to 1 GiB) and fragmentation (2 to 10 %) take. CPU:
# measured with torch 2.13, imports and Gloo; malloc keeps 65 to 250 MiB of what was freed.
ON_GPU = Overheads(context=0.45 * GIB, communication=0.5 * GIB, fragmentation=0.06)
ON_CPU = Overheads(context=0.36 * GIB, communication=0.0, fragmentation=0.1)
NONE = Overheads(context=0.0, communication=0.0, fragmentation=0.0)


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes at the peak of each rank, on the GPU and on the host, `[R, 2]` each.

    Attributes:
        tables: Weights of the shards.
        state: Their optimizers' state.
        averages: Their averages.
        replicated: Buckets and, where that is the peak, gradients of tables that every rank holds.
        dense: The dense part: weights, gradients in their buckets, state, averages.
        ids: Ids of batches in flight, and whole batches on a GPU.
        exchanged: Embeddings on their way to other ranks, where that is the peak.
        update: Gradients of embeddings and temporaries of the update, where that is the peak.
        activations: Activations of the dense part, where that is the peak.
        build: Temporaries of the build, where that is the peak.
        context: The process itself.
        communication: Buffers of the communication library.
        fragmentation: What the allocator holds beside.
    """

    tables: np.ndarray
    state: np.ndarray
    averages: np.ndarray
    replicated: np.ndarray
    dense: np.ndarray
    ids: np.ndarray
    exchanged: np.ndarray
    update: np.ndarray
    activations: np.ndarray
    build: np.ndarray
    context: np.ndarray
    communication: np.ndarray
    fragmentation: np.ndarray

    def by_kind(self) -> dict[str, np.ndarray]:
        """Returns all of them by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> np.ndarray:
        """All kinds together."""
        return sum(self.by_kind().values(), np.zeros_like(self.tables))


@dataclass(frozen=True)
class Shards:
    """All shards of a plan.

    Attributes:
        options: One option for each, whose rows are the shard's.
        rank: The rank of each.
    """

    options: Options
    rank: np.ndarray


def memory_of(
    plan: Solution | ShardingPlan,
    tables: Sequence[Table],
    ranks: Ranks,
    config: Config,
    overheads: Overheads | None = None,
) -> RankMemory:
    """Returns the memory of each rank under a plan.

    Args:
        plan: The placement of the tables, as found or as TorchRec has it.
        tables: The tables, as `tables_to_plan` returns them.
        ranks: The ranks.
        config: The configuration, whose model is traced.
        overheads: Memory beside what is allocated; unset for the defaults of the device.

    Raises:
        InputError: The model cannot be built.
    """
    shards = _of_solution(plan, tables) if isinstance(plan, Solution) else _of_plan(plan, tables, ranks)
    kinds = _on_ranks(shards, tables, ranks)
    phases = _phases(kinds, shards, tables, ranks, dense_memory(config, ranks.number))
    kept = _kept(kinds, tables, ranks, config)
    return _at_peak(kept, phases, ranks, overheads or defaults(ranks))


def defaults(ranks: Ranks) -> Overheads:
    """Returns the overheads of a kind of device, where none were measured."""
    return ON_GPU if ranks.on_gpu else ON_CPU


def beside_shards(
    tables: Sequence[Table], ranks: Ranks, config: Config, overheads: Overheads | None = None, phase: str | None = None
) -> dict[str, float]:
    """Returns the bytes of a rank's device that are not its shards', by name.

    Args:
        tables: The tables.
        ranks: The ranks.
        config: The configuration.
        overheads: As in `memory_of`.
        phase: A phase of a step, of `shard_memory.PHASES`; unset for the most of any.
    """
    overheads = overheads or defaults(ranks)
    dense = dense_memory(config, ranks.number)
    local, received = (_local_ids(tables, ranks), _received(tables, ranks)) if ranks.number > 1 else (0, 0)
    in_phase = {
        "exchange": 2 * received + local,
        "dense": dense.activations,
        "backward": received,
        "update": 0,
    }
    built = BYTES_TO_INITIALIZE - dense.state
    return {
        "the dense part": _dense_bytes(dense, config),
        "its activations": in_phase[phase] if phase else max(built, *in_phase.values()),
        "batches": _batches(tables, ranks, config),
        "the process": overheads.context + (overheads.communication if ranks.number > 1 else 0.0),
    }


def room_for_shards(
    capacity: float,
    tables: Sequence[Table],
    ranks: Ranks,
    config: Config,
    overheads: Overheads | None = None,
    phase: str | None = None,
) -> float:
    """Returns the bytes of a rank's device that its shards may take; negative if nothing fits.

    Shards that take no more by `shard_memory` fit in any case: it adds up the most of each shard in any phase. With a
    phase, shards that take more by `memory_in_phase` do not fit.

    Args:
        capacity: Bytes of the device.
        tables: The tables.
        ranks: The ranks.
        config: The configuration.
        overheads: As in `memory_of`.
        phase: As in `beside_shards`.
    """
    overheads = overheads or defaults(ranks)
    beside = beside_shards(tables, ranks, config, overheads, phase)
    process = beside.pop("the process")
    return (capacity - process) / (1 + overheads.fragmentation) - sum(beside.values())


def _of_solution(solution: Solution, tables: Sequence[Table]) -> Shards:
    parts = []
    for number, table in enumerate(tables):
        planned = planned_table(solution, number, table)
        pieces = table.columns // planned.shard_columns
        cuts = 1 if planned.kind == "data_parallel" else len(planned.ranks) // pieces
        ends = np.minimum(np.arange(cuts + 1) * -(-table.rows // cuts), table.rows)
        count = len(planned.ranks)
        rows = np.resize(np.diff(ends), count)
        parts.append(
            _part(number, planned.kind, planned.kernel, planned.shard_columns, planned.cached, rows, planned.ranks)
        )
    return _joined(parts)


def _of_plan(plan: ShardingPlan, tables: Sequence[Table], ranks: Ranks) -> Shards:
    placed, parts = table_plans(plan), []
    for number, table in enumerate(tables):
        one = placed[table.name]
        cached = one.cache_params.load_factor if one.cache_params else None
        sizes = [shard.shard_sizes for shard in shards_of(one)] or [[table.rows, table.columns]] * ranks.number
        where = [shard.placement.rank() for shard in shards_of(one)] or [*range(ranks.number)]  # pyrefly: ignore
        rows, columns = np.array(sizes).T
        parts.append(_part(number, one.sharding_type, one.compute_kernel, columns, cached, rows, where))
    return _joined(parts)


Part = tuple[np.ndarray, ...]


def _part(
    table: int,
    kind: str,
    kernel: str,
    columns: int | np.ndarray,
    cached: float | None,
    rows: np.ndarray,
    where: Sequence[int],
) -> Part:
    """Returns the shards of a table: number of the table, of type and kernel, columns, cached part, rows, rank."""
    values = (table, KINDS.index(kind), KERNELS.index(kernel), columns, cached or 0.0, rows, np.array(where))
    return tuple(np.broadcast_to(value, len(rows)) for value in values)


def _joined(parts: Sequence[Part]) -> Shards:
    table, kind, kernel, columns, cached, rows, rank = (np.concatenate(column) for column in zip(*parts, strict=True))
    one = np.ones(len(table), dtype=int)
    return Shards(Options(table, kind, kernel, columns, cached, one, one, rows), rank)


def _on_ranks(shards: Shards, tables: Sequence[Table], ranks: Ranks) -> dict[str, np.ndarray]:
    """Returns the bytes of all shards of each rank by kind, `[R, 2]` each."""
    found = {}
    for kind, size in memory_by_kind(shards.options, tables, ranks).items():
        found[kind] = np.zeros((ranks.number, 2))
        gather = np.maximum if kind in LARGEST_OF_RANK else np.add
        gather.at(found[kind], shards.rank, size)
    return found


def _kept(kinds: dict[str, np.ndarray], tables: Sequence[Table], ranks: Ranks, config: Config) -> dict[str, np.ndarray]:
    dense = _everywhere(_dense_bytes(dense_memory(config, ranks.number), config), ranks)
    ids = kinds["ids"] + _everywhere(_batches(tables, ranks, config), ranks)
    bucket = kinds["replicated"] / 2
    kept = {kind: kinds[kind] for kind in ("tables", "state", "averages")}
    return kept | {"replicated": bucket, "dense": dense, "ids": ids}


def _phases(
    kinds: dict[str, np.ndarray], shards: Shards, tables: Sequence[Table], ranks: Ranks, dense: DenseMemory
) -> dict[str, dict[str, np.ndarray]]:
    """Returns what each phase adds to what is kept, by kind."""
    received = _everywhere(_received(tables, ranks) if ranks.number > 1 else 0, ranks)
    local = _everywhere(_local_ids(tables, ranks) if ranks.number > 1 else 0, ranks)
    largest = np.zeros((ranks.number, 2))
    np.maximum.at(largest, shards.rank, memory_by_kind(shards.options, tables, ranks)["replicated"] / 2)
    return {
        "exchange": {"exchanged": kinds["exchanged"] + 2 * received, "ids": local},
        "dense": {"activations": _everywhere(dense.activations, ranks)},
        "backward": {"replicated": kinds["replicated"] / 2, "exchanged": received},
        "update": {"update": kinds["looked_up"] + kinds["update"]},
        "build": {
            "build": np.maximum(_everywhere(BYTES_TO_INITIALIZE, ranks), largest),
            "dense": -_everywhere(dense.state, ranks),
            "ids": -kinds["ids"] - _everywhere(_local_ids(tables, ranks), ranks),
        },
    }


def _at_peak(
    kept: dict[str, np.ndarray], phases: dict[str, dict[str, np.ndarray]], ranks: Ranks, overheads: Overheads
) -> RankMemory:
    """Returns what is kept with what the phase adds that adds the most, rank by rank."""
    device = 0 if ranks.on_gpu else 1
    added = np.stack([sum(phase.values())[:, device] for phase in phases.values()])  # pyrefly: ignore
    worst = added.argmax(axis=0)
    nothing = np.zeros((ranks.number, 2))
    found = {field.name: kept.get(field.name, nothing).copy() for field in fields(RankMemory)}
    for number, phase in enumerate(phases.values()):
        for kind, size in phase.items():
            found[kind] += np.where((worst == number)[:, None], size, 0)
    allocated = sum(found.values(), nothing)
    found["fragmentation"] = overheads.fragmentation * allocated * _everywhere(1, ranks)
    found["context"] = _everywhere(overheads.context, ranks)
    found["communication"] = _everywhere(overheads.communication if ranks.number > 1 else 0.0, ranks)
    return RankMemory(**found)


def _everywhere(size: float, ranks: Ranks) -> np.ndarray:
    """Returns bytes that every rank has on its device, `[R, 2]`."""
    return np.tile([size, 0.0] if ranks.on_gpu else [0.0, size], (ranks.number, 1))


def _dense_bytes(dense: DenseMemory, config: Config) -> int:
    averages = dense.weights if config.optimizer.ema.decay else 0
    return dense.weights + dense.gradients + dense.state + averages


def _local_ids(tables: Sequence[Table], ranks: Ranks) -> float:
    """Returns the bytes of a local batch's ids, their numbers and their weights."""
    of_sample = [(INT + one.weight_bytes) * sum(one.hotness) + INT * len(one.hotness) for one in tables]
    return ranks.batch_size * sum(of_sample)


def _batches(tables: Sequence[Table], ranks: Ranks, config: Config) -> float:
    """Returns the bytes of a rank's own batches: the ids of one, and all of those that were copied to a GPU."""
    data = config.data
    numbers = len(data.dense) + len(data.labels) + 2 * len(data.groups) + 2
    whole = _local_ids(tables, ranks) + FLOAT * ranks.batch_size * numbers
    return _local_ids(tables, ranks) + (BATCHES_ON_GPU * whole if ranks.on_gpu else 0)


def _received(tables: Sequence[Table], ranks: Ranks) -> float:
    """Returns the bytes of a local batch's embeddings."""
    found = sum(table.columns * (len(table.hotness) if table.is_pooled else sum(table.hotness)) for table in tables)
    return FLOAT * ranks.batch_size * found
