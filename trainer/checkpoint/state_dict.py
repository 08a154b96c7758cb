"""The tensors of a checkpoint, under names that do not depend on the plan.

`model.NAME`                 a weight; a table has its whole shape, whatever its shards are
`table.TABLE.SLOT`           state of a table's optimizer, under the fused optimizer's name; also of replicated tables
`dense.NAME.SLOT`            state of a dense optimizer
`ema.NAME`                   the average of a weight, `ema_steps` and `ema_touched.TABLE.steps`: see trainer/optim
"""

from collections.abc import Iterator
from typing import Any

from torchrec.distributed.model_parallel import DistributedModelParallel

from trainer.models.embeddings import table_of_name, table_of_weight
from trainer.optim.optimizers import Optimizers

State = dict[str, Any]
REPLICATED_SLOT = {"sum": "momentum1"}  # the same slot in torch's Adagrad and in FBGEMM's


def model_tensors(model: DistributedModelParallel) -> State:
    """Returns the weights as views; writing to them changes the model."""
    # Not torch's get_model_state_dict, which does not accept a DistributedModelParallel.
    return {f"model.{name}": value for name, value in model.state_dict().items()}


def all_tensors(model: DistributedModelParallel, optimizers: Optimizers) -> State:
    """Returns weights and optimizer state as views; writing to them changes model and optimizers."""
    return model_tensors(model) | optimizer_tensors(optimizers)


def optimizer_tensors(optimizers: Optimizers) -> State:
    """Returns optimizer state as views; writing to them changes the optimizers.

    A rank without a shard of a table has no entry for the table's state. Never call a collective in a loop over the
    names: ranks would wait for each other.
    """
    return dict(_sparse(optimizers)) | dict(_dense(optimizers))


def _sparse(optimizers: Optimizers) -> Iterator[tuple[str, Any]]:
    for slots in optimizers.tables.fused.state_dict()["state"].values():
        for name, value in slots.items():
            yield f"table.{name}", value
    for parameter, slots in optimizers.tables.replicated_state():
        table = parameter.split(".")[-2]  # in the model's spelling, like the fused optimizer's names above
        for name, value in slots.items():
            if name in REPLICATED_SLOT:  # Adagrad's other slot counts steps for lr_decay, which is not used
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
    """Returns whether a tensor has values for each row of a table; most rows do not change between checkpoints."""
    return is_table(name) or name.startswith(("table.", "ema_touched.", "managed."))


def table_of(name: str) -> str:
    """Returns the table of a weight `model....TABLE.weight` or of optimizer state `table.TABLE.SLOT`."""
    return table_of_name(name.split(".")[-2])
