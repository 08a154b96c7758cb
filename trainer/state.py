"""The tensors that a checkpoint holds, under names that do not depend on the plan.

`model.NAME`                 a weight; tables by their whole shape, whatever the shards
`table.TABLE.SLOT`           a table optimizer's state, under the fused optimizer's name for it, replicated tables too
`dense.NAME.SLOT`            the dense optimizer's state
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from trainer.optimizers import Optimizers

State = dict[str, Any]
REPLICATED_SLOT = {"sum": "momentum1"}  # what torch's Adagrad and FBGEMM's call the same thing


def model_tensors(model: DistributedModelParallel) -> State:
    """Returns the weights, as views that writing to changes the model."""
    return {f"model.{name}": value for name, value in model.state_dict().items()}


def all_tensors(model: DistributedModelParallel, optimizers: Optimizers) -> State:
    """Returns weights and optimizer state, as views that writing to changes the job.

    A rank that holds no shard of a table has no entry for that table's optimizer state.
    """
    return model_tensors(model) | dict(_sparse(optimizers)) | dict(_dense(optimizers))


def _sparse(optimizers: Optimizers) -> Iterator[tuple[str, Any]]:
    for slots in optimizers.fused.state_dict()["state"].values():
        for name, value in slots.items():
            yield f"table.{name}", value
    for parameter, slots in optimizers.replicated_state():
        table = parameter.split(".")[-2]
        for name, value in slots.items():
            if name in REPLICATED_SLOT:  # the rest is torch's count of steps, which Adagrad does not use
                yield f"table.{table}.{REPLICATED_SLOT[name]}", value.view(-1) if value.shape[-1] == 1 else value


def _dense(optimizers: Optimizers) -> Iterator[tuple[str, Any]]:
    for parameter, slots in optimizers.dense_state():
        for name, value in slots.items():
            if value is not None:
                yield f"dense.{parameter}.{name}", value


def local_pieces(value: Tensor) -> list[Tensor]:
    """Returns what this rank holds of a tensor, whole or sharded."""
    return [shard.tensor for shard in value.local_shards()] if isinstance(value, ShardedTensor) else [value]


def is_row_state(name: str, value: Any, saved: torch.Size) -> bool:
    """Tells whether a saved slot has one value per row, once for every cut by columns, and now is cut otherwise."""
    return name.startswith("table.") and value.dim() == 1 and value.size() != saved


def write_row_state(value: Any, saved: Tensor, rows: int) -> None:
    """Fills row-wise optimizer state that was saved under another number of cuts by columns.

    A cut sees only its columns' gradients, so `k` equal cuts keep `k` numbers for a row; their mean is what a whole
    row would have kept, and stands for each of the new cuts.

    Args:
        value: The state to fill, `[rows * cuts]`.
        saved: The saved state, `[rows * saved cuts]`.
        rows: Rows of the table.
    """
    per_row = saved.view(-1, rows).mean(0)
    pieces = (
        [(shard.tensor, shard.metadata.shard_offsets[0]) for shard in value.local_shards()]
        if isinstance(value, ShardedTensor)
        else [(value, 0)]
    )
    for tensor, offset in pieces:
        tensor.copy_(per_row[(offset + torch.arange(len(tensor))) % rows])
