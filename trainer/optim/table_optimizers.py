"""Table optimizers by name: the kernel that FBGEMM fuses into backward, and its equivalent for replicated tables.

A user's own class is not possible: FBGEMM's kernels are a closed set.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torchrec.optim as fused
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward

from trainer.config.table_optim import SparseOptimizerConfig
from trainer.core.errors import InputError

Optimizer = type[torch.optim.Optimizer]


@dataclass(frozen=True)
class TableOptimizer:
    """One table optimizer.

    Attributes:
        fused: Names the kernel to FBGEMM.
        replicated: The same update from a dense gradient, for replicated tables, which have no fused kernel; None if
            there is none.
        on_cpu: Whether FBGEMM 1.8 implements it on a CPU.
        options: Configuration keys that it takes besides the learning rate.
    """

    fused: Optimizer
    replicated: Optimizer | None = None
    on_cpu: bool = False
    options: tuple[str, ...] = ("eps",)


MOMENTS = ("eps", "beta1", "beta2")

TABLE_OPTIMIZERS = {
    "sgd": TableOptimizer(fused.SGD, torch.optim.SGD, on_cpu=True, options=()),
    "adagrad": TableOptimizer(fused.Adagrad, torch.optim.Adagrad, on_cpu=True),
    "rowwise_adagrad": TableOptimizer(fused.RowWiseAdagrad, fused.RowWiseAdagrad, on_cpu=True),
    "adam": TableOptimizer(fused.Adam, options=MOMENTS),
    "lamb": TableOptimizer(fused.LAMB, options=MOMENTS),
    "lars_sgd": TableOptimizer(fused.LarsSGD, options=()),
    "partial_rowwise_adam": TableOptimizer(fused.PartialRowWiseAdam, options=MOMENTS),
    "partial_rowwise_lamb": TableOptimizer(fused.PartialRowWiseLAMB, options=MOMENTS),
}
REPLICABLE = [name for name, optimizer in TABLE_OPTIMIZERS.items() if optimizer.replicated]
ON_CPU = [name for name, optimizer in TABLE_OPTIMIZERS.items() if optimizer.on_cpu]


def check_table_optimizer(config: SparseOptimizerConfig, device_type: str) -> None:
    """Refuses a table optimizer that the device does not have.

    Raises:
        InputError: FBGEMM has no such optimizer for a CPU.
    """
    if device_type == "cpu" and config.name not in ON_CPU:
        raise InputError(
            f"optimizer.sparse.name is '{config.name}', which FBGEMM does not have on a CPU; "
            f"use one of {', '.join(ON_CPU)}, or a GPU"
        )


def fuse(tables: nn.Module, config: SparseOptimizerConfig) -> None:
    """Marks the tables' parameters, still on the meta device, for an update inside backward."""
    # Unmarked, tables would train with FBGEMM's default, SGD at rate 0.01, without a warning. One call and one dict for
    # each: TorchRec changes the options that it gets, and a second use would lose the learning rate.
    for parameter in tables.parameters():
        apply_optimizer_in_backward(TABLE_OPTIMIZERS[config.name].fused, [parameter], table_options(config))


def table_options(config: SparseOptimizerConfig) -> dict[str, Any]:
    """Returns the keyword arguments of a table optimizer, for fused and replicated tables alike."""
    keys = TABLE_OPTIMIZERS[config.name].options
    return {"lr": config.learning_rate, **{key: getattr(config, key) for key in keys}}
