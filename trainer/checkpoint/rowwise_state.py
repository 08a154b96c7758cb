"""Row-wise state: one value per row of a table, in each of its column shards.

TorchRec lays it out as `[column shards * rows]`, from left to right, so its size depends on the plan and DCP alone
cannot reshard it ("Size mismatch between saved [203] and current [406]").
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.core.local_shards import placed_shards


@dataclass(frozen=True)
class ColumnShards:
    """The column shards of a table.

    Attributes:
        rows: Rows of the table.
        widths: Columns of every shard, from left to right.
    """

    rows: int
    widths: tuple[int, ...]

    @classmethod
    def of_table(cls, table: Tensor) -> Self:
        """Returns the column shards of a table of this model."""
        if not isinstance(table, ShardedTensor):
            return cls(table.size(0), (table.size(1),))
        shards = table.metadata().shards_metadata
        return cls(table.size(0), _widths([(shard.shard_offsets, shard.shard_sizes) for shard in shards]))

    @classmethod
    def of_saved(cls, table: TensorStorageMetadata) -> Self:
        """Returns the column shards of a table in a checkpoint."""
        return cls(table.size[0], _widths([(chunk.offsets, chunk.sizes) for chunk in table.chunks]))


def _widths(parts: list[tuple[list[int] | torch.Size, list[int] | torch.Size]]) -> tuple[int, ...]:
    width_at = {offsets[1]: sizes[1] for offsets, sizes in parts}
    return tuple(width_at[offset] for offset in sorted(width_at))


def is_rowwise_state(name: str, shape: torch.Size) -> bool:
    """Returns whether a tensor is row-wise state of a table."""
    return name.startswith(("table.", "ema_touched.")) and len(shape) == 1


def write_rowwise_state(value: Tensor, saved: Tensor, saved_shards: ColumnShards, rows: int) -> None:
    """Fills row-wise state that was saved under other column shards, or for fewer rows.

    Each shard keeps the mean over its own columns. The mean of these, weighted by widths, is the value that the whole
    row would have, and fills each of the new shards.

    Args:
        value: The state to fill, `[column shards * rows]`; values of rows that were not saved stay.
        saved: The saved state, `[saved column shards * saved rows]`.
        saved_shards: The column shards of the saved table.
        rows: Rows of the table now.
    """
    # In float64 the mean of equal values is that value: 4 shards and back to 1 change no bit.
    widths = torch.tensor(saved_shards.widths, dtype=torch.float64)
    per_row = widths @ saved.view(len(widths), saved_shards.rows).double() / widths.sum()
    for shard, offsets in placed_shards(value):
        row = (offsets[0] + torch.arange(len(shard))) % rows
        known = row < saved_shards.rows
        shard[known.to(shard.device)] = per_row[row[known]].to(shard)
