"""The weights of a checkpoint, whole and in memory, as they are trained or averaged."""

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.checkpoint.consolidate import read_tensors
from trainer.checkpoint.io import CheckpointReader
from trainer.checkpoint.restore import saved_shapes
from trainer.checkpoint.rowwise_state import ColumnShards
from trainer.checkpoint.state_dict import is_table
from trainer.checkpoint.store import Checkpoint
from trainer.config.averages import AverageConfig
from trainer.core.errors import InputError

MODEL = "model.model."  # the model inside the one with its loss
STEPS = "ema_steps"


def read_weights(checkpoint: Checkpoint, ema: AverageConfig, averages: bool) -> dict[str, Tensor]:
    """Returns the weights of the model, without its losses, by their path in it.

    Takes the memory of the weights; with averages of tables, that of the largest table twice more.

    Args:
        checkpoint: The checkpoint.
        ema: The averages.
        averages: Whether to take the averages of those weights that have some.

    Raises:
        InputError: Averages are wanted, and the checkpoint has none.
    """
    weights = read_tensors(checkpoint.url, lambda name: name.startswith(MODEL))
    if averages:
        _average(checkpoint.url, weights, ema)
    return {name.removeprefix(MODEL): weight for name, weight in weights.items()}


def _average(url: str, weights: dict[str, Tensor], ema: AverageConfig) -> None:
    saved = saved_shapes(url)
    averaged = {name: average for name in weights if (average := f"ema.{name.removeprefix('model.')}") in saved}
    if not averaged or ema.decay is None:
        raise InputError(f"--averages is True, but the checkpoint {url} has none; train with optimizer.ema.decay")
    dense = {name: average for name, average in averaged.items() if not is_table(name)}
    found = read_tensors(url, set(dense.values()).__contains__)
    for name, average in averaged.items():
        if name in dense:
            weights[name].copy_(found[average])
        else:
            _average_table(url, name, average, weights[name], ema.decay)


def _average_table(url: str, name: str, average: str, weight: Tensor, decay: float) -> None:
    """Replaces the weights of a table, whose averages stand as of the step that last looked a row up."""
    touched = f"ema_touched.{name.split('.')[-2]}.steps"
    found = read_tensors(url, {average, touched, STEPS}.__contains__)
    entry = CheckpointReader(url).read_metadata().state_dict_metadata[name]
    assert isinstance(entry, TensorStorageMetadata)
    shards = ColumnShards.of_saved(entry)
    left = (decay ** (found[STEPS] - found[touched]).double()).float().view(len(shards.widths), shards.rows)
    parts = (tensor.split(shards.widths, dim=1) for tensor in (weight, found[average]))
    for column, now, then in zip(left, *parts, strict=True):
        now.copy_(torch.lerp(now.float(), then, column[:, None]))


def read_managed(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Returns the state of managed ids by its names in the checkpoint."""
    return read_tensors(checkpoint.url, lambda name: name.startswith("managed."))
