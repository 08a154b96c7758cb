"""Row-wise optimizer state: one value per row of a table, once for every cut of the table by columns.

TorchRec lays it out as `[cuts * rows]`, cut after cut from left to right. So another plan can make it another size.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.checkpoint.state_dict import placed_shards


@dataclass(frozen=True)
class ColumnShards:
    """How a table is cut by columns.

    Attributes:
        rows: Rows of the table.
        widths: Columns of every cut, from left to right.
    """

    rows: int
    widths: tuple[int, ...]

    @classmethod
    def of_table(cls, table: Tensor) -> Self:
        """Returns how a table of this job is cut."""
        if not isinstance(table, ShardedTensor):
            return cls(table.size(0), (table.size(1),))
        shards = table.metadata().shards_metadata
        return cls(table.size(0), _widths([(shard.shard_offsets, shard.shard_sizes) for shard in shards]))

    @classmethod
    def of_saved(cls, table: TensorStorageMetadata) -> Self:
        """Returns how a table in a checkpoint was cut."""
        return cls(table.size[0], _widths([(chunk.offsets, chunk.sizes) for chunk in table.chunks]))


def _widths(parts: list[tuple[list[int] | torch.Size, list[int] | torch.Size]]) -> tuple[int, ...]:
    width_at = {offsets[1]: sizes[1] for offsets, sizes in parts}
    return tuple(width_at[offset] for offset in sorted(width_at))


def is_rowwise_state(name: str, shape: torch.Size) -> bool:
    """Tells whether a tensor is row-wise state of a table."""
    return name.startswith("table.") and len(shape) == 1


def write_rowwise_state(value: Tensor, saved: Tensor, saved_cuts: ColumnShards, rows: int) -> None:
    """Fills row-wise state that was saved under other cuts, or for fewer rows.

    A cut keeps the mean over its own columns. Their mean, weighted by their widths, is what a whole row would have
    kept, and stands for each of the new cuts.

    Args:
        value: The state to fill, `[cuts * rows]`; what belongs to rows that were not saved stays.
        saved: The saved state, `[saved cuts * saved rows]`.
        saved_cuts: What it was saved for.
        rows: Rows of the table now.
    """
    widths = torch.tensor(saved_cuts.widths, dtype=torch.float64)
    per_row = widths @ saved.view(len(widths), saved_cuts.rows).double() / widths.sum()
    for piece, offsets in placed_shards(value):
        row = (offsets[0] + torch.arange(len(piece))) % rows
        known = row < saved_cuts.rows
        piece[known.to(piece.device)] = per_row[row[known]].to(piece)
