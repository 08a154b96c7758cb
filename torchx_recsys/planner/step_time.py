"""The time of a step: of a rank's shards in each phase, for many options at once, and of a whole plan.

Unlike TorchRec's own estimate, this counts bags and updated rows beside bytes: on a CPU they dominate. Ranks wait for
each other in every exchange, so a step takes the sum of the slowest rank's time in each phase.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchx_recsys.planner.skew import hit_rates, touched_rows
from torchx_recsys.planner.tables import (
    CACHED,
    DATA_PARALLEL,
    GRID,
    OF_ROWS,
    ROW_WISE,
    TABLE_ROW_WISE,
    UVM,
    DenseWork,
    Options,
    PlannedTable,
    Table,
    options_of,
)
from torchx_recsys.planner.topology import KERNEL, Speeds, Topology, latency

# Where the time of a step goes, in forecasts, measurements and profiles. A detail is `PART: DETAIL`: `update: tables`.
INPUT, FORWARD, EXCHANGE, BACKWARD, UPDATE, OTHER = "input", "forward", "exchange", "backward", "update", "other"
PARTS = (INPUT, FORWARD, EXCHANGE, BACKWARD, UPDATE, OTHER)
PHASES = ("input", "forward", "forward_comms", "backward_comms", "backward")
LEAST_BYTES = 64  # bytes that a lookup reads at least: a cache line
GRADIENT_BYTES = 4  # bytes of a gradient's value
MILLISECONDS = 1e-6  # in a nanosecond


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Work of a shard of each option in a step, each `[O]`.

    Attributes:
        bags: Bags that are looked up.
        ids: Ids in these bags.
        exchanged: Ids that are sent; an id sent with a weight counts for two.
        bucketed: Ids of a rank's own batch that it sorts by row shard.
        unique: Rows that are updated.
        row_bytes: Bytes of a row.
        outputs: Values that are output.
        table_bytes: Bytes of the whole shard.
    """

    bags: np.ndarray
    ids: np.ndarray
    exchanged: np.ndarray
    bucketed: np.ndarray
    unique: np.ndarray
    row_bytes: np.ndarray
    outputs: np.ndarray
    table_bytes: np.ndarray


def unique_rows(draws: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the expected number of distinct rows that uniform draws hit."""
    with np.errstate(divide="ignore"):
        missed = np.log1p(-1.0 / rows)  # minus infinity for a single row
    return np.where(draws > 0, -rows * np.expm1(np.maximum(draws, np.finfo(float).tiny) * missed), 0.0)


def costs(options: Options, tables: Sequence[Table], topology: Topology) -> np.ndarray:
    """Returns the milliseconds of a shard of each option in each phase, `[O, 5]`."""
    speeds, replicated = topology.speeds, options.kind == DATA_PARALLEL
    work = _work(options, tables, topology)
    slower = _slower(replace(options, cached=hit_rates(options, tables)), topology)
    exchanged = np.where(replicated, 0.0, work.exchanged)
    lookup = work.bags * speeds.bag + work.ids * np.maximum(work.row_bytes, LEAST_BYTES) * speeds.lookup_byte * slower
    updated = GRADIENT_BYTES * work.ids * options.columns + 2 * work.unique * work.row_bytes * slower
    update = work.unique * speeds.unique_row + updated * speeds.update_byte
    whole = np.where(replicated, work.table_bytes * speeds.replicated_byte, 0.0)
    forward, backward = _exchanges(options, tables, topology, speeds, work)
    distributed = exchanged * speeds.id + work.bucketed * speeds.bucketed_id
    phases = [distributed, lookup, forward, backward, update + whole]
    return MILLISECONDS * np.stack(phases, axis=1)


def _work(options: Options, tables: Sequence[Table], topology: Topology) -> _Work:
    of = {
        key: np.array([getattr(table, key) for table in tables])[options.table] for key in ("value_bytes", "is_pooled")
    }
    samples = topology.batch_size * np.where(options.kind == DATA_PARALLEL, 1, topology.ranks)
    parts = np.select(
        [options.kind == ROW_WISE, np.isin(options.kind, OF_ROWS)], [topology.ranks, topology.per_host], 1
    )
    hotness = np.array([sum(table.hotness) for table in tables])[options.table]
    ids = samples * hotness / parts
    # Every row shard has all bags, but most of their ids are on other shards; each id of a sequence is a bag.
    bags = np.where(of["is_pooled"], samples * np.array([len(table.hotness) for table in tables])[options.table], ids)
    row_bytes = options.columns * of["value_bytes"]
    with_weight = np.array([table.weight_bytes > 0 for table in tables])[options.table]
    return _Work(
        bags=bags,
        ids=ids,
        exchanged=ids * (1 + with_weight),
        bucketed=np.where(np.isin(options.kind, OF_ROWS), topology.batch_size * hotness, 0.0),
        unique=touched_rows(unique_rows(ids, options.rows), samples, parts, options, tables),
        row_bytes=row_bytes,
        outputs=bags * options.columns,
        table_bytes=options.rows * row_bytes,
    )


def _slower(options: Options, topology: Topology) -> np.ndarray:
    """Returns how many times slower a table's memory is than the rank's own."""
    elsewhere = np.isin(options.kernel, (UVM, CACHED))
    return np.where(elsewhere, topology.gpu_bandwidth / host_table_bandwidth(options, topology), 1.0)


def host_table_bandwidth(options: Options, topology: Topology) -> np.ndarray:
    """Returns the bandwidth of tables in host memory as TorchRec estimates it, in bytes per millisecond."""
    cached = options.cached * topology.gpu_bandwidth + (1 - options.cached) * topology.pcie_bandwidth
    return np.where(options.kernel == CACHED, cached, topology.pcie_bandwidth) / 10


def value_bytes(topology: Topology, value: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the bytes of an exchanged value, forward and backward: in all-to-all, and in partial sums."""
    if topology.bytes_of_value is None:
        return [value, value], [value, value]
    found = [np.full_like(value, one, dtype=float) for one in topology.bytes_of_value]
    return found[:2], found[2:]


def _exchanges(
    options: Options, tables: Sequence[Table], topology: Topology, speeds: Speeds, work: _Work
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the nanoseconds of exchanges forward and backward."""
    value = np.array([table.value_bytes for table in tables])[options.table]
    pooled = np.array([table.is_pooled for table in tables], dtype=bool)[options.table]
    all_to_all, partial_sums = value_bytes(topology, value)
    in_host = np.isin(options.kind, (TABLE_ROW_WISE, GRID))
    ways = []
    for way, summing_byte in enumerate((speeds.reduce_scatter_byte, speeds.all_gather_byte)):
        whole, summed = work.outputs * all_to_all[way], work.outputs * partial_sums[way]
        inside = summed * _others(topology.per_host) * summing_byte
        between = whole / topology.per_host * _others(topology.hosts) * speeds.network_byte
        ways.append(
            np.select(
                [options.kind == DATA_PARALLEL, in_host, (options.kind == ROW_WISE) & pooled],
                [0.0, inside + between, ring(summed, topology, speeds, summing_byte)],
                _all_to_all(whole, topology, speeds),
            )
        )
    reduced = 2 * ring(work.table_bytes, topology, speeds, speeds.all_reduce_byte)
    return ways[0], np.where(options.kind == DATA_PARALLEL, reduced, ways[1])


def _others(number: int) -> float:
    """Returns the part of a member's data that belongs to other members."""
    return (number - 1) / number


def _all_to_all(size: np.ndarray, topology: Topology, speeds: Speeds) -> np.ndarray:
    """Returns the nanoseconds of an all-to-all of a buffer: links inside and between hosts work in parallel."""
    inside = (topology.per_host - 1) / topology.ranks * speeds.all_to_all_byte
    between = (topology.ranks - topology.per_host) / topology.ranks * speeds.network_byte
    return size * max(inside, between)


def ring(size: np.ndarray, topology: Topology, speeds: Speeds, inside_byte: float) -> np.ndarray:
    """Returns the nanoseconds of a ring over all ranks: traffic between hosts uses the links of all.

    Args:
        size: Bytes that each rank gives.
        topology: The topology of identical ranks.
        speeds: Speeds of the ranks.
        inside_byte: Nanoseconds of a byte that leaves a rank in this kind of exchange inside a host.
    """
    between = speeds.network_byte / topology.per_host if topology.hosts > 1 else 0.0
    return size * _others(topology.ranks) * max(inside_byte, between)


NAMES = {
    "input": f"{EXCHANGE}: ids",
    "forward": f"{FORWARD}: lookup",
    "forward_comms": f"{EXCHANGE}: embeddings",
    "backward_comms": f"{EXCHANGE}: gradients",
    "backward": f"{UPDATE}: tables",
}
"""Names of the phases. The dense part, which computes in forward and in backward, has a name of its own."""


@dataclass(frozen=True)
class StepPart:
    """A part of a step.

    Attributes:
        name: Its name.
        slowest: Milliseconds of the slowest rank, for which the others wait.
        mean: Milliseconds of a rank on average.
    """

    name: str
    slowest: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The time of a step under a plan, in milliseconds.

    Attributes:
        phases: The phases of tables and exchanges.
        by_rank: Time of each rank in each phase, `[R, phases]`.
        dense: Time of the dense part: its products, the bytes of its operations, the all-reduce of its gradients.
        latency: Fixed time of exchanges, independent of their size.
        constant: Time of everything else.
        source: Source of the speeds, as text to print.
    """

    phases: Sequence[str]
    by_rank: np.ndarray
    dense: float
    latency: float
    constant: float
    source: str

    @property
    def slowest(self) -> np.ndarray:
        """Time of the slowest rank in each phase, `[phases]`: ranks wait for each other in every exchange."""
        return self.by_rank.max(axis=0)

    @property
    def total(self) -> float:
        """Time of the step."""
        return float(self.slowest.sum()) + self.dense + self.latency + self.constant

    @property
    def parts(self) -> list[StepPart]:
        """The parts of the step, which add up to its time."""
        mean = self.by_rank.mean(axis=0)
        phases = [
            StepPart(NAMES[name], float(self.slowest[number]), float(mean[number]))
            for number, name in enumerate(self.phases)
        ]
        rest = {"dense part": self.dense, f"{EXCHANGE}: latency": self.latency, OTHER: self.constant}
        return phases + [StepPart(name, time, time) for name, time in rest.items() if time]

    @property
    def longest(self) -> StepPart:
        """The part that bounds the step."""
        return max(self.parts, key=lambda part: part.slowest)


def step_time(
    planned: Sequence[PlannedTable], tables: Sequence[Table], topology: Topology, dense: DenseWork
) -> StepTime:
    """Returns the time of a step under a plan.

    Args:
        planned: The placement of each table.
        tables: The tables, in the same order.
        topology: The topology of identical ranks.
        dense: Work of the dense part.
    """
    phases = costs(options_of(planned), tables, topology)
    by_rank = np.zeros((topology.ranks, len(PHASES)))
    for table, placed in enumerate(planned):
        np.add.at(by_rank, np.asarray(placed.ranks), phases[table])
    of_dense, of_latency, constant = beside_tables(topology, dense)
    return StepTime(
        phases=PHASES,
        by_rank=by_rank,
        dense=of_dense,
        latency=of_latency,
        constant=constant,
        source=topology.speeds_source,
    )


def beside_tables(topology: Topology, dense: DenseWork) -> tuple[float, float, float]:
    """Returns the milliseconds of a step's dense part, of its exchange latency, and of all else but tables."""
    speeds, system = topology.speeds, topology.system
    products = dense.flops * speeds.flop + dense.batched_flops * speeds.batched_flop
    computed = products + dense.bytes * speeds.dense_byte
    gradients = float(2 * ring(np.array(dense.gradients), topology, speeds, speeds.all_reduce_byte))
    overlaps = system is not None and system.overlaps_gradients
    of_dense = max(computed, gradients) if overlaps else computed + gradients
    of_latency = latency(topology.per_host, topology.hosts) if system else 0.0
    # The host starts kernels while others run; long histories on a GPU are many short ones.
    started = dense.kernels * KERNEL if system and not system.is_fused else 0.0
    constant = max(speeds.step, started - computed)
    return MILLISECONDS * of_dense, MILLISECONDS * of_latency, MILLISECONDS * constant


def sent_by_hosts(placed: Sequence[PlannedTable], tables: Sequence[Table], topology: Topology) -> np.ndarray:
    """Returns the bytes that each host sends to others in a step, forward and backward together, `[H]`."""
    options = options_of(placed)
    value = np.array([table.value_bytes for table in tables])
    pooled = np.array([table.is_pooled for table in tables], dtype=bool)
    hotness = [sum(min(1.0, one) if table.is_pooled else one for one in table.hotness) for table in tables]
    summed = np.isin(options.kind, OF_ROWS) & pooled
    ways = zip(*value_bytes(topology, value), strict=True)
    each = sum(np.where(summed, partial, whole) for whole, partial in ways)  # bytes per value, forward and backward
    size = np.array(hotness) * topology.batch_size * topology.ranks * options.columns * each
    found = np.zeros(topology.ranks)
    for number, table in enumerate(tables):
        found[[*placed[number].ranks]] += _leaving(int(options.kind[number]), float(size[number]), table, topology)
    return found.reshape(topology.hosts, topology.per_host).sum(axis=1)


def _leaving(kind: int, size: float, table: Table, topology: Topology) -> float:
    """Returns the bytes that a shard's rank sends to other hosts.

    Args:
        kind: The sharding type.
        size: Bytes of the embeddings of all samples, and of their gradients.
        table: The table.
        topology: The topology of identical ranks.
    """
    others, other_hosts = (topology.ranks - 1) / topology.ranks, (topology.hosts - 1) / topology.hosts
    if topology.hosts == 1:
        return 0.0
    if kind == DATA_PARALLEL:  # a ring, which leaves each host through one rank
        return 2 * table.rows * table.columns * table.value_bytes * others / topology.per_host
    if kind == ROW_WISE:
        return size * (others / topology.per_host if table.is_pooled else other_hosts / topology.ranks)
    if kind in (TABLE_ROW_WISE, GRID):  # summed inside the host
        return size / topology.per_host * other_hosts
    return size * other_hosts
