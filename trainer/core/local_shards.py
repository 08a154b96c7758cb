"""The local shards of tensors, which may be sharded or whole."""

from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor


def local_shards_of(value: Tensor) -> list[Tensor]:
    """Returns the local shards of a tensor; a whole tensor is one."""
    return [tensor for tensor, _ in placed_shards(value)]


def placed_shards(value: Tensor) -> list[tuple[Tensor, list[int]]]:
    """Returns the local shards of a tensor, each with its offsets in the whole; a whole tensor is one."""
    if isinstance(value, ShardedTensor):
        return [(shard.tensor, shard.metadata.shard_offsets) for shard in value.local_shards()]
    return [(value, [0] * value.dim())]
