"""Options with their costs, as the search uses them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchx_recsys.planner.options import Options, all_options, has_options
from torchx_recsys.planner.problem import Table, Topology
from torchx_recsys.planner.shard_memory import shard_memory, sum_of_shards
from torchx_recsys.planner.step_costs import costs


@dataclass(frozen=True)
class Rated:
    """Options with the cost and memory of one shard, and of all shards together.

    Attributes:
        options: The options.
        cost: Milliseconds of a shard, `[O]`.
        memory: Bytes of the largest shard, on the GPU and on the host, `[O, 2]`.
        total_cost: Milliseconds of all shards.
        total_memory: Bytes of all shards.
        starts: Number of the first option of each table, `[T]`.
    """

    options: Options
    cost: np.ndarray
    memory: np.ndarray
    total_cost: np.ndarray
    total_memory: np.ndarray
    starts: np.ndarray

    @property
    def tables(self) -> int:
        """Number of tables."""
        return len(self.starts)

    def of_table(self, table: int) -> slice:
        """Returns the options of a table."""
        stop = self.starts[table + 1] if table + 1 < self.tables else len(self.options)
        return slice(int(self.starts[table]), int(stop))


def rate(
    tables: Sequence[Table], topology: Topology, memory_of_shard: Callable[..., np.ndarray] = shard_memory
) -> Rated:
    """Returns the options of tables with their costs.

    Args:
        tables: The tables.
        topology: The topology of identical ranks.
        memory_of_shard: Returns the memory of shards; unset for the most that shards take.

    Raises:
        ValueError: A table has no option.
    """
    for table in tables:
        if not has_options(table, topology):
            raise ValueError(f"table '{table.name}' cannot be sharded as allowed")
    options = all_options(tables, topology)
    cost = costs(options, tables, topology).sum(axis=1)
    memory = memory_of_shard(options, tables, topology)
    starts = np.searchsorted(options.table, np.arange(len(tables)))
    total_memory = sum_of_shards(options, tables, topology, memory_of_shard)
    return Rated(options, cost, memory, cost * options.shards, total_memory, starts)
