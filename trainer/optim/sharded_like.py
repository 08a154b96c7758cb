"""Sharded tensors that lie beside a table, shard for shard."""

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata

Offsets = tuple[int, ...]


def sharded_like(table: ShardedTensor, shards: Mapping[Offsets, Tensor], dtype: torch.dtype) -> ShardedTensor:
    """Returns a tensor of a table's shape from its local shards, by the offsets of the table's."""
    metadata = deepcopy(table.metadata())
    return _sharded(table, shards, metadata, _with_rows(metadata), dtype)


def rowwise_like(table: ShardedTensor, shards: Mapping[Offsets, Tensor], dtype: torch.dtype) -> ShardedTensor:
    """Returns a tensor with a value for each row of a table in each of its column shards, as TorchRec lays them out.

    Args:
        table: The table, `[R, D]`.
        shards: The local shards, by the offsets of the table's; the result is `[column shards * R]`.
        dtype: Their type, which a rank without any cannot tell.
    """
    metadata = deepcopy(table.metadata())
    parts = _with_rows(metadata)
    columns = sorted({part.shard_offsets[1] for part in parts.values()})
    for (row, column), part in parts.items():
        part.shard_offsets = [columns.index(column) * table.size(0) + row]
        part.shard_sizes = part.shard_sizes[:1]
    metadata.size = torch.Size([len(columns) * table.size(0)])
    return _sharded(table, shards, metadata, parts, dtype)


def _with_rows(metadata: ShardedTensorMetadata) -> dict[Offsets, ShardMetadata]:
    """Returns the shards that have rows by their offsets; one without begins where the next one does."""
    return {tuple(part.shard_offsets): part for part in metadata.shards_metadata if 0 not in part.shard_sizes}


def _sharded(
    table: ShardedTensor,
    shards: Mapping[Offsets, Tensor],
    metadata: ShardedTensorMetadata,
    parts: dict[Offsets, ShardMetadata],
    dtype: torch.dtype,
) -> ShardedTensor:
    metadata.shards_metadata = [*parts.values()]
    metadata.tensor_properties.dtype, metadata.tensor_properties.requires_grad = dtype, False
    local = [Shard(shard, parts[offsets]) for offsets, shard in shards.items() if shard.numel()]
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        local, metadata, process_group=table._process_group
    )
