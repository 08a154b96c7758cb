"""TorchRec's estimates of the time and memory of shards, for many options at once: the same figures.

`benchmarks.planners` compares this project's search with TorchRec's by these: both plan by the same estimates. Formulas
and constants are from torchrec.distributed.planner.estimator, version 1.8. There, the cost of a shard depends on its
sharding type, its columns and the batch, and not on its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from torchx_recsys.planner.lower_bound import Rated, rate
from torchx_recsys.planner.shard_memory import CACHE_BYTES_PER_ROW, CACHE_BYTES_PER_SLOT, STATE_BYTES
from torchx_recsys.planner.step_time import host_table_bandwidth, value_bytes
from torchx_recsys.planner.tables import (
    CACHED,
    DATA_PARALLEL,
    DENSE,
    FUSED,
    GRID,
    OF_ROWS,
    ON_WHOLE_HOSTS,
    ROW_WISE,
    TABLE_ROW_WISE,
    UVM,
    Options,
    Table,
)
from torchx_recsys.planner.topology import Topology

ID_BYTES = 8
BACKWARD = 2.0  # time of backward relative to forward
COPY = 2.455  # cost per byte of a gathered gradient
REPLICATED_UPDATE = 9.22  # cost per byte of a replicated table
LEAST_LOOKUP = 32  # columns below which a lookup takes no less time
NARROW = (128, 1.15), (64, 1.75)  # a lookup below N columns takes F times as long: (N, F)


@dataclass(frozen=True, kw_only=True)
class Bandwidths(Topology):
    """A topology with the bandwidths that TorchRec's estimate counts with.

    Attributes:
        host_bandwidth: Bandwidth of host memory, in bytes per millisecond, as all of these.
        intra_bandwidth: Bandwidth between two ranks of a host.
        inter_bandwidth: Bandwidth from a rank to other hosts.
    """

    host_bandwidth: float
    intra_bandwidth: float
    inter_bandwidth: float

    @classmethod
    def of(cls, topology: Topology, **bandwidths: Any) -> "Bandwidths":
        """Returns a topology with its bandwidths."""
        return cls(**{field.name: getattr(topology, field.name) for field in fields(topology)}, **bandwidths)


def rate_by_torchrec(tables: Sequence[Table], topology: Bandwidths) -> Rated:
    """Returns the options of tables with TorchRec's estimates of their time and memory."""
    found = rate(tables, topology, shard_bytes)
    cost = costs(found.options, tables, topology).sum(axis=1)
    return replace(found, cost=cost, total_cost=cost * found.options.shards)


def lookups(tables: Sequence[Table], batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of ids and of embeddings in a batch per table, `[T]` each."""
    ids = np.array([sum(hotness * batch_size for hotness in table.hotness) for table in tables])
    pooled = np.array([sum(min(1.0, hotness) * batch_size for hotness in table.hotness) for table in tables])
    return ids, np.where([table.is_pooled for table in tables], pooled, ids)


def costs(options: Options, tables: Sequence[Table], topology: Bandwidths) -> np.ndarray:
    """Returns the milliseconds of a shard of each option in each phase, `[O, 4]`."""
    ids, embeddings = (of_table[options.table] for of_table in lookups(tables, topology.batch_size))
    world, kind, columns = topology.ranks, options.kind, options.columns
    value = np.array([table.value_bytes for table in tables])[options.table]
    pooled = np.array([table.is_pooled for table in tables])[options.table]
    of_rows, replicated = np.isin(kind, OF_ROWS), kind == DATA_PARALLEL
    divisor = np.select([kind == ROW_WISE, of_rows], [world, topology.per_host], 1)
    copies = np.where(replicated, 1, world)
    read = np.ceil(ids / divisor * copies * ID_BYTES)
    found = ids / divisor * copies * np.where(of_rows | replicated, columns, np.maximum(columns, LEAST_LOOKUP)) * value
    written = np.where(of_rows & ~pooled, embeddings / divisor, embeddings) * copies * columns
    all_to_all, partial_sums = value_bytes(topology, value)
    # TorchRec exchanges row-wise sequences like ids: all to all.
    summed = of_rows & (pooled | (kind != ROW_WISE))
    forward_out, backward_out = (
        written * np.where(replicated, value, np.where(summed, partial_sums[way], all_to_all[way])) for way in (0, 1)
    )
    penalty = np.ones(len(options))
    for below, times in NARROW:
        penalty = np.where((columns < below) & ~of_rows & ~replicated, times, penalty)
    device = device_bandwidth(options, topology)
    forward = (read + found + forward_out) * penalty / device
    between = _between_hosts(options, embeddings, all_to_all, topology)
    exchange = np.where(
        np.isin(kind, (TABLE_ROW_WISE, GRID)), topology.intra_bandwidth, _all_to_all_bandwidth(topology)
    )
    forward_comms = np.where(replicated, 0.0, forward_out / exchange + between[0])
    backward_comms = between[1] + backward_out / exchange + np.where(of_rows, backward_out * COPY / device, 0.0)
    if replicated.any():
        size = np.array([table.rows for table in tables])[options.table] * columns * value
        backward_comms = np.where(
            replicated, _all_reduce(size, topology) + size * REPLICATED_UPDATE / device, backward_comms
        )
    return np.stack([forward, forward_comms, BACKWARD * forward, backward_comms], axis=1)


def device_bandwidth(options: Options, topology: Bandwidths) -> np.ndarray:
    """Returns the bandwidth of the memory that holds each option's table, in bytes per millisecond."""
    device, kernel = topology.gpu_bandwidth if topology.on_gpu else topology.host_bandwidth, options.kernel
    elsewhere = host_table_bandwidth(options, topology)
    return np.select(
        [kernel == DENSE, kernel == FUSED, np.isin(kernel, (UVM, CACHED))], [0.5 * device, device, elsewhere]
    )


def _all_to_all_bandwidth(topology: Bandwidths) -> float:
    return topology.intra_bandwidth if topology.hosts == 1 else topology.inter_bandwidth


def _between_hosts(
    options: Options, embeddings: np.ndarray, all_to_all: list[np.ndarray], topology: Bandwidths
) -> list[np.ndarray]:
    """Returns the time of whole embeddings between hosts, forward and backward, if partial sums stay inside a host."""
    if topology.hosts == 1:
        return [np.zeros(len(options))] * 2
    inside = np.isin(options.kind, (TABLE_ROW_WISE, GRID))
    sent = embeddings * topology.hosts * options.columns
    return [np.where(inside, sent * value / topology.inter_bandwidth, 0.0) for value in all_to_all]


def _all_reduce(size: np.ndarray, topology: Bandwidths) -> np.ndarray:
    """Returns the time to sum the gradients of replicated tables; TorchRec counts at most two hosts."""
    hosts = min(topology.ranks / topology.per_host, 2)
    reduced = size * (2 * hosts - 1) / hosts / (topology.inter_bandwidth * topology.per_host)
    return reduced * 2 if topology.ranks > 2 * topology.per_host else reduced


def shard_bytes(
    options: Options, tables: Sequence[Table], topology: Topology, rows: np.ndarray | None = None
) -> np.ndarray:
    """Returns the bytes of a shard of each option, on the GPU and on the host, `[O, 2]`.

    Args:
        options: The options.
        tables: The tables.
        topology: The topology of identical ranks.
        rows: Rows of the shard, `[O]`; unset for the largest.
    """
    rows = options.rows if rows is None else rows
    values = rows * options.columns
    weights = values * _of_table(tables, "value_bytes")[options.table]
    cached, on_host = options.kernel == CACHED, np.isin(options.kernel, (UVM, CACHED))
    if not topology.on_gpu:
        on_host = np.ones(len(options), dtype=bool)
    state = STATE_BYTES * (
        values * _of_table(tables, "state_per_value")[options.table]
        + rows * _of_table(tables, "state_per_row")[options.table]
    )
    averages = (
        values * _of_table(tables, "averages_per_value")[options.table]
        + rows * _of_table(tables, "averages_per_row")[options.table]
    )
    exchanged = np.where(rows > 0, _exchanged(options, tables, topology), 0)
    if not topology.on_gpu:
        return np.stack([np.zeros(len(options)), weights + state + averages + exchanged], axis=1)
    cache = np.ceil(weights * options.cached) + np.ceil(
        rows * (CACHE_BYTES_PER_ROW + options.cached * CACHE_BYTES_PER_SLOT)
    )
    gpu = np.where(on_host, np.where(cached, cache, 0), weights + state) + averages + exchanged
    return np.stack([gpu, np.where(on_host, weights + state, 0)], axis=1)


def _exchanged(options: Options, tables: Sequence[Table], topology: Topology) -> np.ndarray:
    """Returns the bytes of a batch's ids and embeddings that a shard receives and sends, `[O]`."""
    ids, embeddings = (of_table[options.table] for of_table in lookups(tables, topology.batch_size))
    kind, pooled = options.kind, _of_table(tables, "is_pooled")[options.table]
    divisor = np.select([kind == ROW_WISE, np.isin(kind, ON_WHOLE_HOSTS)], [topology.ranks, topology.per_host], 1)
    copies = np.where(kind == DATA_PARALLEL, 1, topology.ranks)
    embeddings = np.where(np.isin(kind, OF_ROWS) & ~pooled, embeddings / divisor, embeddings)
    value = _of_table(tables, "value_bytes")[options.table]
    return np.ceil(ids / divisor * copies * ID_BYTES) + np.ceil(embeddings * copies * options.columns * value)


def _of_table(tables: Sequence[Table], key: str) -> np.ndarray:
    return np.array([getattr(table, key) for table in tables])
