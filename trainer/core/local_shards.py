"""Finds the local shards of sharded or whole tensors."""

from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor


def local_shards_of(value: Tensor) -> list[Tensor]:
    """Returns the local shards of a tensor; a whole tensor is one shard."""
    return [tensor for tensor, _ in placed_shards(value)]


def placed_shards(value: Tensor) -> list[tuple[Tensor, list[int]]]:
    """Returns the local shards of a tensor, each with its offsets; a whole tensor is one shard."""
    if isinstance(value, ShardedTensor):
        return [(shard.tensor, shard.metadata.shard_offsets) for shard in value.local_shards()]
    return [(value, [0] * value.dim())]
