"""Which ranks hold which rows of a table."""

import numpy as np
from torchrec.distributed.types import ParameterSharding

from trainer.core.arrays import places_in_groups
from trainer.plan.sharding_plan import shards_of


class RowHolders:
    """The ranks that hold the rows of a table; of a row several, if it is cut into columns or every rank holds it.

    Args:
        table: The placement of the table.
        rows: Rows of the table.
        ranks: Number of ranks.
    """

    def __init__(self, table: ParameterSharding, rows: int, ranks: int) -> None:
        shards = [
            (shard.shard_offsets[0], shard.shard_offsets[0] + shard.shard_sizes[0], shard.placement.rank())  # pyrefly: ignore[missing-attribute]
            for shard in shards_of(table)
        ]
        # Each once, as a rank can hold several of the columns.
        self._first, self._end, self._ranks = np.unique(shards or [(0, rows, n) for n in range(ranks)], axis=0).T

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ranks, `[K]`, and the rows among `[N]` that they hold, `[K]`; a row comes once for each rank."""
        rows = np.sort(rows)
        start, stop = np.searchsorted(rows, self._first), np.searchsorted(rows, self._end)
        numbers = stop - start
        return np.repeat(self._ranks, numbers), rows[np.repeat(start, numbers) + places_in_groups(numbers)]
