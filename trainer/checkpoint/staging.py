"""A copy of a job's tensors in memory, to be written while training goes on."""

from copy import deepcopy

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed.remote_device import _remote_device

from trainer.checkpoint.state_dict import State, local_shards_of


class StagingBuffers:
    """Copies tensors to CPU memory, the same memory every time."""

    def __init__(self) -> None:
        self._copies: State = {}

    @torch.no_grad()
    def stage(self, tensors: State) -> State:
        """Returns copies of a job's tensors; the next call writes over them.

        Args:
            tensors: This rank's tensors, whole or sharded.
        """
        if self._copies.keys() != tensors.keys():
            self._copies = {name: _empty_like(value) for name, value in tensors.items()}
        for name, value in tensors.items():
            pieces = [piece for piece in local_shards_of(value) if piece.numel()]
            for copy, piece in zip(local_shards_of(self._copies[name]), pieces, strict=True):
                copy.copy_(piece)
        return self._copies


def _empty_like(value: Tensor) -> Tensor:
    if not isinstance(value, ShardedTensor):
        return torch.empty_like(value, device="cpu")
    metadata = deepcopy(value.metadata())
    # A shard without rows would lie where the next one begins, and a checkpoint knows shards by where they lie.
    metadata.shards_metadata = [shard for shard in metadata.shards_metadata if 0 not in shard.shard_sizes]
    for shard in metadata.shards_metadata:
        assert shard.placement is not None
        shard.placement = _remote_device(f"rank:{shard.placement.rank()}/cpu")
    offsets = {tuple(shard.shard_offsets): shard for shard in metadata.shards_metadata}
    shards = [
        Shard(torch.empty_like(shard.tensor, device="cpu"), offsets[tuple(shard.metadata.shard_offsets)])
        for shard in value.local_shards()
        if shard.tensor.numel()
    ]
    group = value._process_group
    return ShardedTensor._init_from_local_shards_and_global_metadata(shards, metadata, process_group=group)
