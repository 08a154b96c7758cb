"""Bytes that leave each host in a step: embeddings and gradients for ranks of other hosts."""

import numpy as np

from torchx_recsys.planner.options import DATA_PARALLEL, GRID, OF_ROWS, ROW_WISE, TABLE_ROW_WISE
from torchx_recsys.planner.planned import Planned
from torchx_recsys.planner.step_costs import value_bytes


def sent_by_hosts(planned: Planned) -> np.ndarray:
    """Returns the bytes that each host sends to others in a step, forward and backward together, `[H]`."""
    topology, placement = planned.topology, planned.found.placement
    options, chosen = placement.rated.options, placement.option
    value = np.array([table.value_bytes for table in planned.tables])
    pooled = np.array([table.is_pooled for table in planned.tables])
    hotness = [sum(min(1.0, one) if table.is_pooled else one for one in table.hotness) for table in planned.tables]
    kind, columns = options.kind[chosen], options.columns[chosen]
    summed = np.isin(kind, OF_ROWS) & pooled
    ways = zip(*value_bytes(topology, value), strict=True)
    each = sum(np.where(summed, partial, whole) for whole, partial in ways)  # bytes of a value, forward and backward
    size = np.array(hotness) * topology.batch_size * topology.ranks * columns * each
    found = np.zeros(topology.ranks)
    for table, where in enumerate(placement.where):
        found[where] += _leaving(int(kind[table]), float(size[table]), planned, table)
    return found.reshape(topology.hosts, topology.per_host).sum(axis=1)


def _leaving(kind: int, size: float, planned: Planned, table: int) -> float:
    """Returns the bytes that a shard's rank sends to other hosts.

    Args:
        kind: The sharding type.
        size: Bytes of the embeddings of all samples, and of their gradients.
        planned: The plan.
        table: Number of the table.
    """
    topology = planned.topology
    others, other_hosts = (topology.ranks - 1) / topology.ranks, (topology.hosts - 1) / topology.hosts
    if topology.hosts == 1:
        return 0.0
    if kind == DATA_PARALLEL:  # a ring, which leaves each host through one rank
        shape = planned.tables[table]
        return 2 * shape.rows * shape.columns * shape.value_bytes * others / topology.per_host
    if kind == ROW_WISE:
        return size * (others / topology.per_host if planned.tables[table].is_pooled else other_hosts / topology.ranks)
    if kind in (TABLE_ROW_WISE, GRID):  # summed inside the host
        return size / topology.per_host * other_hosts
    return size * other_hosts
