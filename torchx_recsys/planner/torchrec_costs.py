"""TorchRec's estimate of a step's time, for many options at once: the same figures, to the last digits.

Formulas and constants are from torchrec.distributed.planner.estimator, version 1.8. There, the cost of a shard depends
on its sharding type, its columns and the batch, and not on its rows.
"""

from collections.abc import Sequence

import numpy as np

from torchx_recsys.planner.options import (
    CACHED,
    DATA_PARALLEL,
    DENSE,
    FUSED,
    GRID,
    OF_ROWS,
    ROW_WISE,
    TABLE_ROW_WISE,
    UVM,
    Options,
)
from torchx_recsys.planner.problem import Table, Topology

ID_BYTES = 8
PHASES = ("forward", "forward_comms", "backward", "backward_comms")
BACKWARD = 2.0  # times forward
COPY = 2.455  # per byte of a gathered gradient
REPLICATED_UPDATE = 9.22  # per byte of a replicated table
LEAST_LOOKUP = 32  # columns; narrower lookups take as long
NARROW = (128, 1.15), (64, 1.75)  # a lookup below N columns takes F times as long: (N, F)


def lookups(tables: Sequence[Table], batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of ids and of embeddings in a batch per table, `[T]` each."""
    ids = np.array([sum(hotness * batch_size for hotness in table.hotness) for table in tables])
    pooled = np.array([sum(min(1.0, hotness) * batch_size for hotness in table.hotness) for table in tables])
    return ids, np.where([table.is_pooled for table in tables], pooled, ids)


def costs(options: Options, tables: Sequence[Table], topology: Topology) -> np.ndarray:
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


def value_bytes(topology: Topology, value: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Returns the bytes of an exchanged value, forward and backward: in all-to-all, and in partial sums."""
    if topology.bytes_of_value is None:
        return [value, value], [value, value]
    found = [np.full_like(value, one, dtype=float) for one in topology.bytes_of_value]
    return found[:2], found[2:]


def device_bandwidth(options: Options, topology: Topology) -> np.ndarray:
    """Returns the bandwidth of the memory that holds each option's table, in bytes per millisecond."""
    device = topology.gpu_bandwidth if topology.on_gpu else topology.host_bandwidth
    cached = (options.cached * topology.gpu_bandwidth + (1 - options.cached) * topology.pcie_bandwidth) / 10
    kernel = options.kernel
    choices = [0.5 * device, device, topology.pcie_bandwidth / 10, cached]
    return np.select([kernel == DENSE, kernel == FUSED, kernel == UVM, kernel == CACHED], choices)


def _all_to_all_bandwidth(topology: Topology) -> float:
    return topology.intra_bandwidth if topology.hosts == 1 else topology.inter_bandwidth


def _between_hosts(
    options: Options, embeddings: np.ndarray, all_to_all: list[np.ndarray], topology: Topology
) -> list[np.ndarray]:
    """Returns the time of whole embeddings between hosts, forward and backward, if partial sums stay inside a host."""
    if topology.hosts == 1:
        return [np.zeros(len(options))] * 2
    inside = np.isin(options.kind, (TABLE_ROW_WISE, GRID))
    sent = embeddings * topology.hosts * options.columns
    return [np.where(inside, sent * value / topology.inter_bandwidth, 0.0) for value in all_to_all]


def _all_reduce(size: np.ndarray, topology: Topology) -> np.ndarray:
    """Returns the time to sum the gradients of replicated tables; TorchRec counts at most two hosts."""
    hosts = min(topology.ranks / topology.per_host, 2)
    reduced = size * (2 * hosts - 1) / hosts / (topology.inter_bandwidth * topology.per_host)
    return reduced * 2 if topology.ranks > 2 * topology.per_host else reduced
