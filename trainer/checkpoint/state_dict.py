"""The tensors of a checkpoint, under names that do not depend on the plan.

`model.NAME`                 a weight; tables by their whole shape, whatever the shards
`table.TABLE.SLOT`           a table optimizer's state, under the fused optimizer's name for it, replicated tables too
`dense.NAME.SLOT`            the dense optimizer's state
`ema.NAME`                   the average of a weight, `ema_steps` and `ema_touched.TABLE.steps`: see trainer/optim
"""

from collections.abc import Iterator
from typing import Any

from torchrec.distributed.model_parallel import DistributedModelParallel

from trainer.models.embeddings import table_of_name, table_of_weight
from trainer.optim.optimizers import Optimizers

State = dict[str, Any]
REPLICATED_SLOT = {"sum": "momentum1"}  # torch's Adagrad and FBGEMM's have two names for one slot


def model_tensors(model: DistributedModelParallel) -> State:
    """Returns the weights as views: writing to them changes the model."""
    # torch's get_model_state_dict does not take a DistributedModelParallel.
    return {f"model.{name}": value for name, value in model.state_dict().items()}


def all_tensors(model: DistributedModelParallel, optimizers: Optimizers) -> State:
    """Returns weights and optimizer state as views: writing to them changes model and optimizers."""
    return model_tensors(model) | optimizer_tensors(optimizers)


def optimizer_tensors(optimizers: Optimizers) -> State:
    """Returns optimizer state as views: writing to them changes the optimizers.

    A rank without a shard of a table has no entry for that table's state. So ranks must not call collectives in a loop
    over the names.
    """
    return dict(_sparse(optimizers)) | dict(_dense(optimizers))


def _sparse(optimizers: Optimizers) -> Iterator[tuple[str, Any]]:
    for slots in optimizers.tables.fused.state_dict()["state"].values():
        for name, value in slots.items():
            yield f"table.{name}", value
    for parameter, slots in optimizers.tables.replicated_state():
        table = parameter.split(".")[-2]  # as the model spells it, like the fused optimizer above
        for name, value in slots.items():
            if name in REPLICATED_SLOT:  # the other is a count of steps, which only the unused lr_decay needs
                yield f"table.{table}.{REPLICATED_SLOT[name]}", value.view(-1) if value.shape[-1] == 1 else value


def _dense(optimizers: Optimizers) -> Iterator[tuple[str, Any]]:
    for parameter, slots in optimizers.dense_state():
        for name, value in slots.items():
            if value is not None:
                yield f"dense.{parameter}.{name}", value


def is_table(name: str) -> bool:
    """Returns whether a tensor of a checkpoint is an embedding table."""
    return table_of_weight(name) is not None


def is_by_row(name: str) -> bool:
    """Returns whether a tensor of a checkpoint has a value or values for each row of a table, most of which rest."""
    return is_table(name) or name.startswith(("table.", "ema_touched.", "managed."))


def table_of(name: str) -> str:
    """Returns the table that a weight `model....TABLE.weight` or a state `table.TABLE.SLOT` belongs to."""
    return table_of_name(name.split(".")[-2])
