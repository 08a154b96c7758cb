"""Finds and makes the local shards of sharded or whole tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata, TensorProperties

from trainer.core.distributed import DistributedContext


def local_shards_of(value: Tensor) -> list[Tensor]:
    """Returns the local shards of a tensor; a whole tensor is one shard."""
    return [tensor for tensor, _ in placed_shards(value)]


def placed_shards(value: Tensor) -> list[tuple[Tensor, list[int]]]:
    """Returns the local shards of a tensor, each with its offsets; a whole tensor is one shard."""
    if isinstance(value, ShardedTensor):
        return [(shard.tensor, shard.metadata.shard_offsets) for shard in value.local_shards()]
    return [(value, [0] * value.dim())]


def with_rows_elsewhere(
    values: Tensor, owners: Sequence[tuple[range, int]], context: DistributedContext
) -> Tensor | ShardedTensor:
    """Returns the tensor of all rows, of which this rank has `values`, as views.

    Args:
        values: The values of this rank's rows, on the CPU, `[rows of this rank]`, in the order of `owners`.
        owners: All rows, as consecutive rows with the rank that has them.
        context: This process among the ranks.
    """
    if context.world_size == 1:
        return values
    shards = [ShardMetadata([rows.start], [len(rows)], f"rank:{rank}/cpu") for rows, rank in owners if rows]
    here = [shard for shard in shards if shard.placement.rank() == context.rank]  # pyrefly: ignore[missing-attribute]
    parts = values.split([shard.shard_sizes[0] for shard in here])
    metadata = ShardedTensorMetadata(
        shards, torch.Size([sum(len(rows) for rows, _ in owners)]), TensorProperties(values.dtype)
    )
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        [Shard(part, shard) for part, shard in zip(parts, here, strict=True)], metadata
    )
