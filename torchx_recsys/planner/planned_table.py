"""The placement of a table: the values that fix its shards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchx_recsys.planner.options import CACHED, KERNELS, KINDS, OF_ROWS, Options
from torchx_recsys.planner.problem import Table
from torchx_recsys.planner.solve import Solution


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """The placement of a table.

    Attributes:
        rows: Rows of the table.
        columns: Columns of the table.
        kind: Its sharding type.
        kernel: Its compute kernel.
        shard_columns: Columns of a shard.
        ranks: The rank of each shard: all row shards of the first columns, then of the next.
        cached: Part of the rows cached on the GPU; unset for kernels without a cache.
    """

    rows: int
    columns: int
    kind: str
    kernel: str
    shard_columns: int
    ranks: Sequence[int]
    cached: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the shards make up the table."""
        pieces, left = divmod(self.columns, self.shard_columns)
        return not left and len(self.ranks) % pieces == 0

    def blocks(self) -> list[tuple[list[int], list[int]]]:
        """Returns offset and size of every shard; the last row shards may be short, or empty."""
        pieces = self.columns // self.shard_columns
        parts = len(self.ranks) // pieces
        block = -(-self.rows // parts)
        starts = [min(part * block, self.rows) for part in range(parts + 1)]
        return [
            ([start, column], [stop - start, self.shard_columns])
            for column in range(0, self.columns, self.shard_columns)
            for start, stop in pairwise(starts)
        ]


def planned_table(solution: Solution, number: int, table: Table) -> PlannedTable:
    """Returns the placement of a table in a solution."""
    options, option = solution.placement.rated.options, solution.placement.option[number]
    kernel = int(options.kernel[option])
    return PlannedTable(
        rows=table.rows,
        columns=table.columns,
        kind=KINDS[options.kind[option]],
        kernel=KERNELS[kernel],
        shard_columns=int(options.columns[option]),
        ranks=solution.placement.where[number].tolist(),
        cached=float(options.cached[option]) if kernel == CACHED else None,
    )


def options_of(planned: Sequence[PlannedTable]) -> Options:
    """Returns the options that a plan chose, one for each table."""
    kind = np.array([KINDS.index(table.kind) for table in planned])
    columns = np.array([table.shard_columns for table in planned])
    pieces = np.array([table.columns for table in planned]) // columns
    shards = np.array([len(table.ranks) for table in planned])
    parts = np.where(np.isin(kind, OF_ROWS), shards // pieces, 1)
    return Options(
        table=np.arange(len(planned)),
        kind=kind,
        kernel=np.array([KERNELS.index(table.kernel) for table in planned]),
        columns=columns,
        cached=np.array([table.cached or 0.0 for table in planned]),
        pieces=pieces,
        shards=shards,
        rows=-(-np.array([table.rows for table in planned]) // parts),
    )


def ranges(ranks: Sequence[int]) -> Iterator[str]:
    """Yields runs of ranks, such as `0-3` and `8`."""
    start = 0
    for stop in range(1, len(ranks) + 1):
        if stop == len(ranks) or ranks[stop] != ranks[stop - 1] + 1:
            yield f"{ranks[start]}-{ranks[stop - 1]}" if stop - start > 1 else str(ranks[start])
            start = stop
