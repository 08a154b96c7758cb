"""Table optimizers by name: the kernel that FBGEMM fuses into backward, and its equivalent for replicated tables.

A user's own class is not possible: FBGEMM's kernels are a closed set.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torchrec.optim as fused
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torch import Tensor, nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward

from trainer.config.optimizer import TABLE_OPTIONS, OptimizerConfig, SparseOptimizerConfig
from trainer.config.root import Config
from trainer.core.errors import InputError, nearest
from trainer.models.embeddings import table_of_weight

Optimizer = type[torch.optim.Optimizer]


@dataclass(frozen=True)
class TableOptimizer:
    """One table optimizer.

    Attributes:
        fused: Names the kernel to FBGEMM.
        replicated: The same update from a dense gradient, for replicated tables, which have no fused kernel; None if
            there is none.
        slots: Dimensions of each slot of its state, which for a table `[R, D]` is `[R, D]` or, row-wise, `[R]`.
        divides_by_update: Whether FBGEMM's kernel divides by the norm of a row's update, to NaN where that is 0.
        joins_columns: Whether an update takes a mean or a norm over the columns of a row, of a column shard only those
            that the shard has. Other column shards then train other weights.
    """

    fused: Optimizer
    replicated: Optimizer | None = None
    slots: tuple[int, ...] = ()
    divides_by_update: bool = False
    joins_columns: bool = False


TABLE_OPTIMIZERS = {
    "sgd": TableOptimizer(fused.SGD, torch.optim.SGD),
    "adagrad": TableOptimizer(fused.Adagrad, torch.optim.Adagrad, slots=(2,)),
    "rowwise_adagrad": TableOptimizer(fused.RowWiseAdagrad, fused.RowWiseAdagrad, slots=(1,), joins_columns=True),
    "adam": TableOptimizer(fused.Adam, slots=(2, 2)),
    "lamb": TableOptimizer(fused.LAMB, slots=(2, 2), divides_by_update=True, joins_columns=True),
    "lars_sgd": TableOptimizer(fused.LarsSGD, slots=(2,), divides_by_update=True, joins_columns=True),
    "partial_rowwise_adam": TableOptimizer(fused.PartialRowWiseAdam, slots=(2, 1), joins_columns=True),
    "partial_rowwise_lamb": TableOptimizer(
        fused.PartialRowWiseLAMB, slots=(2, 1), divides_by_update=True, joins_columns=True
    ),
}
REPLICABLE = [name for name, optimizer in TABLE_OPTIMIZERS.items() if optimizer.replicated]
DECAY_MODES = {"decoupled": WeightDecayMode.DECOUPLE, "l2": WeightDecayMode.L2}


def check_table_optimizers(config: Config, device_type: str) -> None:
    """Refuses optimizers of unknown tables, and settings that FBGEMM's kernels do not support on the device.

    Raises:
        InputError: The message names the key, the value and what to do.
    """
    tables = config.data.features_of_tables()
    for name in config.optimizer.tables:
        if name not in tables:
            raise InputError(f"optimizer.tables.{name}: there is no such table{nearest(name, tables)}")
    _check_rounding(config, device_type)
    for table, features in tables.items() if device_type == "cuda" else ():
        weights = {"data.weight": config.data.weight}
        weights |= {f"data.sparse.{one}.weights": config.data.sparse[one].weights for one in features}
        _check_zero_weights(table, config.optimizer.of_table(table).name, weights)


def _check_zero_weights(table: str, optimizer: str, weights: Mapping[str, str | list[str] | None]) -> None:
    key = next((key for key, column in weights.items() if column), None)
    if key and TABLE_OPTIMIZERS[optimizer].divides_by_update:
        what = "samples" if key == "data.weight" else "ids"
        raise InputError(
            f"{key} is {weights[key]!r}, but '{optimizer}', the optimizer of table '{table}', turns rows of {what} of "
            f"weight 0 into NaN on a GPU; leave such {what} out of the data and {key} unset, or use another optimizer"
        )


def _check_rounding(config: Config, device_type: str) -> None:
    if not config.optimizer.sparse.stochastic_rounding:
        return
    precisions = {config.model.precision_of(table) for table in config.data.features_of_tables()}
    if "fp16" not in precisions:
        raise InputError(
            "optimizer.sparse.stochastic_rounding is true, but model.table_precision is "
            f"'{config.model.table_precision}', which needs no rounding; set it to 'fp16' or leave both out"
        )
    if device_type == "cpu":
        raise InputError(
            "optimizer.sparse.stochastic_rounding is true, but a CPU rounds to nearest; leave it out or use a GPU"
        )


def is_replicable(settings: SparseOptimizerConfig) -> bool:
    """Returns whether a table of these settings can be replicated, where dense gradients update all of its rows."""
    return settings.name in REPLICABLE and not settings.weight_decay


def fuse(model: nn.Module, config: OptimizerConfig) -> None:
    """Marks the parameters of a model's tables, still on the meta device, for an update inside backward."""
    parts: list[SparseOptimizerConfig] = []
    # Unmarked, tables would train with FBGEMM's default, SGD at rate 0.01, without a warning. One call and one dict for
    # each: TorchRec changes the options that it gets, and a second use would lose the learning rate.
    for name, parameter in model.named_parameters():
        if (table := table_of_weight(name)) is None:
            continue
        settings = config.of_table(table)
        if settings not in parts:
            parts.append(settings)
        # TorchRec puts tables of equal options into one kernel, which has one learning rate. Rates are set before every
        # step, so that another number can tell tables of another schedule apart.
        options = fused_options(settings) | {"lr": float(1 + parts.index(settings))}
        apply_optimizer_in_backward(TABLE_OPTIMIZERS[settings.name].fused, [parameter], options)


def fused_options(settings: SparseOptimizerConfig) -> dict[str, Any]:
    """Returns FBGEMM's keyword arguments of a table optimizer, without the learning rate."""
    keys = {*TABLE_OPTIONS[settings.name]} - {"initial_accumulator", "weight_decay", "weight_decay_mode"}
    options: dict[str, Any] = {key: getattr(settings, key) for key in keys}
    if settings.weight_decay:  # FBGEMM's default mode ignores it
        mode = DECAY_MODES[settings.weight_decay_mode]
        options |= {"weight_decay": settings.weight_decay, "weight_decay_mode": mode}
    return options | {"stochastic_rounding": settings.stochastic_rounding}


def replicated_optimizer(settings: SparseOptimizerConfig, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Returns the optimizer of replicated tables."""
    optimizer = TABLE_OPTIMIZERS[settings.name].replicated
    assert optimizer is not None, "check_types refuses it"
    options: dict[str, Any] = {"eps": settings.eps} if "eps" in TABLE_OPTIONS[settings.name] else {}
    return optimizer(parameters, lr=settings.learning_rate, **options)  # pyrefly: ignore[unexpected-keyword]
