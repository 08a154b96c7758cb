"""The memory of each rank under a plan, by kind: memory kept between steps, and the most that a build or step adds.

A rank's peak is less than the sum of its allocations: activations exist only after embeddings were exchanged, and
gradients of tables only after activations are gone. So each phase of a step is counted separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from torchx_recsys.planner.hardware import GIB
from torchx_recsys.planner.shard_memory import LARGEST_OF_RANK, memory_by_kind
from torchx_recsys.planner.tables import KERNELS, KINDS, DenseMemory, Options, PlannedTable, Table
from torchx_recsys.planner.topology import Topology

ACTIVATIONS = "its activations"
BATCHES_ON_GPU = 3  # number of batches that TorchRec's pipeline has on the GPU
INT, FLOAT = 4, 4


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Memory per rank besides allocated tensors; a calibration's figures replace these defaults.

    Attributes:
        context: Bytes of the process on its device: CUDA's context and kernels, or Python with its libraries.
        communication: Bytes of NCCL's buffers if there are several ranks.
        fragmentation: Excess that the allocator holds, as a part of given memory.
    """

    context: float
    communication: float
    fragmentation: float


# CUDA: the middle of the ranges of context (0.3 to 0.6 GiB), NCCL (0.1 to 1 GiB) and fragmentation (2 to 10 %). CPU:
# measured with torch 2.13, imports and Gloo; malloc keeps 65 to 250 MiB of freed memory.
ON_GPU = Overheads(context=0.45 * GIB, communication=0.5 * GIB, fragmentation=0.06)
ON_CPU = Overheads(context=0.36 * GIB, communication=0.0, fragmentation=0.1)
NONE = Overheads(context=0.0, communication=0.0, fragmentation=0.0)
NO_SHARDS = np.empty(0, dtype=int)  # what shards of no table join to


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes at the peak of each rank, on the GPU and on the host, `[R, 2]` each.

    Attributes:
        tables: Weights of the shards.
        state: Optimizer state of the shards.
        averages: Averages of the shards.
        replicated: Buckets and, if part of the peak, gradients of tables that every rank holds.
        dense: The dense part: weights, gradients in their buckets, state, averages.
        ids: Ids of batches in flight, and whole batches on a GPU.
        id_maps: The maps of managed ids, on the host.
        exchanged: Embeddings on their way to other ranks, if part of the peak.
        update: Gradients of embeddings and temporaries of the update, if part of the peak.
        activations: Activations of the dense part, if part of the peak.
        build: Temporaries of the build, if part of the peak.
        context: The process itself.
        communication: Buffers of the communication library.
        fragmentation: Excess that the allocator holds.
    """

    tables: np.ndarray
    state: np.ndarray
    averages: np.ndarray
    replicated: np.ndarray
    dense: np.ndarray
    ids: np.ndarray
    id_maps: np.ndarray
    exchanged: np.ndarray
    update: np.ndarray
    activations: np.ndarray
    build: np.ndarray
    context: np.ndarray
    communication: np.ndarray
    fragmentation: np.ndarray

    def by_kind(self) -> dict[str, np.ndarray]:
        """Returns all kinds by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> np.ndarray:
        """All kinds together."""
        return sum(self.by_kind().values(), np.zeros_like(self.tables))


@dataclass(frozen=True)
class Shards:
    """All shards of a plan.

    Attributes:
        options: One option per shard, with the shard's rows.
        rank: The rank of each shard.
    """

    options: Options
    rank: np.ndarray


def shards_of_tables(planned: Sequence[PlannedTable]) -> Shards:
    """Returns all shards of a plan whose shards are even."""
    return join_shards([_even_shards(number, table) for number, table in enumerate(planned)])


def _even_shards(number: int, table: PlannedTable) -> Shards:
    pieces, count = table.columns // table.shard_columns, len(table.ranks)
    parts = 1 if table.kind == "data_parallel" else count // pieces
    ends = np.minimum(np.arange(parts + 1) * -(-table.rows // parts), table.rows)
    rows = np.resize(np.diff(ends), count)
    return shards_of_table(number, table.kind, table.kernel, table.shard_columns, table.cached, rows, table.ranks)


def shards_of_table(
    table: int,
    kind: str,
    kernel: str,
    columns: int | np.ndarray,
    cached: float | None,
    rows: np.ndarray,
    where: Sequence[int],
) -> Shards:
    """Returns the shards of a table.

    Args:
        table: Number of the table.
        kind: Its sharding type.
        kernel: Its compute kernel.
        columns: Columns of each shard, `[S]`, or one number for all.
        cached: Part of the rows cached on the GPU.
        rows: Rows of each shard, `[S]`.
        where: The rank of each shard, `[S]`.
    """
    values = (table, KINDS.index(kind), KERNELS.index(kernel), columns, cached or 0.0, 1, 1, rows, np.array(where))
    *options, rank = (np.broadcast_to(value, len(rows)) for value in values)
    return Shards(Options(*options), rank)


def join_shards(shards: Sequence[Shards]) -> Shards:
    """Returns the shards of several tables together."""
    of_fields = {field.name: [getattr(one.options, field.name) for one in shards] for field in fields(Options)}
    options = {name: np.concatenate([NO_SHARDS, *values]) for name, values in of_fields.items()}
    return Shards(Options(**options), np.concatenate([NO_SHARDS, *(one.rank for one in shards)]))


def memory_of(
    shards: Shards,
    tables: Sequence[Table],
    topology: Topology,
    dense: DenseMemory,
    overheads: Overheads | None = None,
) -> RankMemory:
    """Returns the memory of each rank under a plan.

    Args:
        shards: The shards of the plan.
        tables: The tables.
        topology: The topology.
        dense: The memory of the dense part.
        overheads: Memory beyond allocations; unset for the defaults of the device.
    """
    kinds = _on_ranks(shards, tables, topology)
    phases = _phases(kinds, shards, tables, topology, dense)
    kept = _kept(kinds, tables, topology, dense)
    return _at_peak(kept, phases, topology, overheads or defaults(topology))


def defaults(topology: Topology) -> Overheads:
    """Returns the overheads of a kind of device without measurements."""
    return ON_GPU if topology.on_gpu else ON_CPU


def beside_shards(
    tables: Sequence[Table],
    topology: Topology,
    dense: DenseMemory,
    overheads: Overheads | None = None,
    phase: str | None = None,
) -> dict[str, float]:
    """Returns the bytes of a rank's device beside its shards, by name.

    Args:
        tables: The tables.
        topology: The topology of identical ranks.
        dense: The memory of the dense part.
        overheads: As in `memory_of`.
        phase: A phase of a step, of `shard_memory.PHASES`; unset for the largest.
    """
    overheads = overheads or defaults(topology)
    local, received = (_local_ids(tables, topology), _received(tables, topology)) if topology.ranks > 1 else (0, 0)
    in_phase = {
        "exchange": 2 * received + local,
        "dense": dense.activations,
        "backward": received,
        "update": 0,
    }
    built = dense.build - dense.state
    return {
        "the dense part": dense.kept,
        ACTIVATIONS: in_phase[phase] if phase else max(built, *in_phase.values()),
        "batches": _batches(tables, topology, dense),
        "managed ids": 0.0 if topology.on_gpu else id_map_bytes(tables, topology),
        "the process": overheads.context + (overheads.communication if topology.ranks > 1 else 0.0),
    }


def room_for_shards(
    capacity: float,
    tables: Sequence[Table],
    topology: Topology,
    dense: DenseMemory,
    overheads: Overheads | None = None,
    phase: str | None = None,
) -> float:
    """Returns the bytes of a rank's device that its shards may take; negative if nothing fits.

    Shards that take no more by `shard_memory` always fit: it adds up each shard's most in any phase. With a phase,
    shards that take more by `memory_in_phase` do not fit.

    Args:
        capacity: Bytes of the device.
        tables: The tables.
        topology: The topology of identical ranks.
        dense: The memory of the dense part.
        overheads: As in `memory_of`.
        phase: As in `beside_shards`.
    """
    overheads = overheads or defaults(topology)
    beside = beside_shards(tables, topology, dense, overheads, phase)
    process = beside.pop("the process")
    return (capacity - process) / (1 + overheads.fragmentation) - sum(beside.values())


def _on_ranks(shards: Shards, tables: Sequence[Table], topology: Topology) -> dict[str, np.ndarray]:
    """Returns the bytes of all shards of each rank by kind, `[R, 2]` each."""
    found = {}
    for kind, size in memory_by_kind(shards.options, tables, topology).items():
        found[kind] = np.zeros((topology.ranks, 2))
        gather = np.maximum if kind in LARGEST_OF_RANK else np.add
        gather.at(found[kind], shards.rank, size)
    return found


def _kept(
    kinds: dict[str, np.ndarray], tables: Sequence[Table], topology: Topology, dense: DenseMemory
) -> dict[str, np.ndarray]:
    ids = kinds["ids"] + _everywhere(_batches(tables, topology, dense), topology)
    kept = {kind: kinds[kind] for kind in ("tables", "state", "averages")}
    maps = np.tile([0.0, id_map_bytes(tables, topology)], (topology.ranks, 1))
    dense_part = _everywhere(dense.kept, topology)
    return kept | {"replicated": kinds["buckets"], "dense": dense_part, "ids": ids, "id_maps": maps}


def _phases(
    kinds: dict[str, np.ndarray], shards: Shards, tables: Sequence[Table], topology: Topology, dense: DenseMemory
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the bytes that each phase adds, by kind."""
    received = _everywhere(_received(tables, topology) if topology.ranks > 1 else 0, topology)
    local = _everywhere(_local_ids(tables, topology) if topology.ranks > 1 else 0, topology)
    largest = np.zeros((topology.ranks, 2))
    np.maximum.at(largest, shards.rank, memory_by_kind(shards.options, tables, topology)["replicated"])
    return {
        "exchange": {"exchanged": kinds["exchanged"] + 2 * received, "ids": local},
        "dense": {"activations": _everywhere(dense.activations, topology)},
        "backward": {"replicated": kinds["replicated"], "exchanged": received},
        "update": {
            "update": kinds["looked_up"] + kinds["update"],
            "replicated": kinds["replicated"] * (not topology.on_gpu),  # on a GPU they are in the buckets
        },
        "build": {
            "build": np.maximum(_everywhere(dense.build, topology), largest),
            "dense": -_everywhere(dense.state, topology),
            "ids": -kinds["ids"] - _everywhere(_local_ids(tables, topology), topology),
        },
    }


def _at_peak(
    kept: dict[str, np.ndarray], phases: dict[str, dict[str, np.ndarray]], topology: Topology, overheads: Overheads
) -> RankMemory:
    """Returns the kept memory plus the largest phase's memory, rank by rank."""
    device = 0 if topology.on_gpu else 1
    added = np.stack([sum(phase.values())[:, device] for phase in phases.values()])  # pyrefly: ignore
    worst = added.argmax(axis=0)
    nothing = np.zeros((topology.ranks, 2))
    found = {field.name: kept.get(field.name, nothing).copy() for field in fields(RankMemory)}
    for number, phase in enumerate(phases.values()):
        for kind, size in phase.items():
            found[kind] += np.where((worst == number)[:, None], size, 0)
    allocated = sum(found.values(), nothing)
    found["fragmentation"] = overheads.fragmentation * allocated * _everywhere(1, topology)
    found["context"] = _everywhere(overheads.context, topology)
    found["communication"] = _everywhere(overheads.communication if topology.ranks > 1 else 0.0, topology)
    return RankMemory(**found)


def _everywhere(size: float, topology: Topology) -> np.ndarray:
    """Returns bytes that every rank has on its device, `[R, 2]`."""
    return np.tile([size, 0.0] if topology.on_gpu else [0.0, size], (topology.ranks, 1))


def id_map_bytes(tables: Sequence[Table], topology: Topology) -> float:
    """Returns the bytes of a rank's parts of the maps of managed ids, which are on its host."""
    return sum(table.rows * table.map_bytes for table in tables) / topology.ranks


def _local_ids(tables: Sequence[Table], topology: Topology) -> float:
    """Returns the bytes of a local batch's ids, lengths and weights."""
    of_sample = [(INT + one.weight_bytes) * sum(one.hotness) + INT * len(one.hotness) for one in tables]
    return topology.batch_size * sum(of_sample)


def _batches(tables: Sequence[Table], topology: Topology, dense: DenseMemory) -> float:
    """Returns the bytes of a rank's own batches: the ids of one, and whole batches copied to a GPU."""
    whole = _local_ids(tables, topology) + topology.batch_size * dense.sample
    return _local_ids(tables, topology) + (BATCHES_ON_GPU * whole if topology.on_gpu else 0)


def _received(tables: Sequence[Table], topology: Topology) -> float:
    """Returns the bytes of a local batch's embeddings."""
    found = sum(table.columns * (len(table.hotness) if table.is_pooled else sum(table.hotness)) for table in tables)
    return FLOAT * topology.batch_size * found
