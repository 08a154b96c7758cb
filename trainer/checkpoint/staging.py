"""Staging: a copy of a rank's tensors in memory, written while training continues."""

from copy import deepcopy

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed.remote_device import _remote_device

from trainer.checkpoint.state_dict import State
from trainer.core.local_shards import local_shards_of


# DCP's async_save stages, too, but it gives the copy away: a save that fails could only be retried with weights that
# have moved on. And its default stager allocates the memory anew for every save.
class StagingBuffers:
    """Copies tensors to CPU memory, the same memory for every save."""

    def __init__(self) -> None:
        self._staged: State = {}

    @torch.no_grad()
    def stage(self, tensors: State) -> State:
        """Returns copies of a rank's tensors; the next call overwrites them.

        Args:
            tensors: This rank's tensors, whole or sharded.
        """
        if self._staged.keys() != tensors.keys():
            self._staged = {name: _empty_like(value) for name, value in tensors.items()}
        for name, value in tensors.items():
            local_shards = [local_shard for local_shard in local_shards_of(value) if local_shard.numel()]
            for staged, local_shard in zip(local_shards_of(self._staged[name]), local_shards, strict=True):
                staged.copy_(local_shard)
        return self._staged


def _empty_like(value: Tensor) -> Tensor:
    if not isinstance(value, ShardedTensor):
        return torch.empty_like(value, device="cpu")
    metadata = deepcopy(value.metadata())
    # A shard without rows begins where the next one does, and shards are identified by their offsets, here and in DCP.
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
