"""Optimizers: fused into backward for the tables, and one for everything else."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import pydantic
import torch
import torchrec.optim as fused
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from trainer.schedules import Schedule, factor
from trainer.section import Section

SparseName = Literal[
    "sgd", "adagrad", "rowwise_adagrad", "adam", "lamb", "lars_sgd", "partial_rowwise_adam", "partial_rowwise_lamb"
]
DenseName = Literal["sgd", "adagrad", "adam", "adamw"]

FUSED: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": fused.SGD,
    "adagrad": fused.Adagrad,
    "rowwise_adagrad": fused.RowWiseAdagrad,
    "adam": fused.Adam,
    "lamb": fused.LAMB,
    "lars_sgd": fused.LarsSGD,
    "partial_rowwise_adam": fused.PartialRowWiseAdam,
    "partial_rowwise_lamb": fused.PartialRowWiseLAMB,
}
# On replicated tables the fused optimizer does not run; these compute the same update from a dense gradient.
REPLICATED: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "rowwise_adagrad": fused.RowWiseAdagrad,
}
DENSE: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
ON_CPU = ("sgd", "adagrad", "rowwise_adagrad")  # what FBGEMM 1.8 implements there


class SparseOptimizerConfig(Section):
    """The optimizer of the embedding tables, fused into backward by FBGEMM."""

    name: SparseName = "rowwise_adagrad"
    """A CPU has sgd, adagrad and rowwise_adagrad. Replicated tables can use these three, too."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Step size before the schedule."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators; sgd and lars_sgd have none."""
    beta1: float = 0.9
    """Decay of the first moment, for Adam and LAMB."""
    beta2: float = 0.999
    """Decay of the second moment, for Adam and LAMB."""
    schedule: Schedule = Schedule()
    """How the learning rate changes."""


class DenseOptimizerConfig(Section):
    """The optimizer of everything that is not an embedding table."""

    name: DenseName = "adagrad"
    """Of torch.optim."""
    learning_rate: pydantic.NonNegativeFloat = 0.02
    """Step size before the schedule."""
    eps: pydantic.PositiveFloat = 1e-8
    """Added to denominators; sgd has none."""
    momentum: pydantic.NonNegativeFloat = 0.0
    """For sgd."""
    beta1: float = 0.9
    """Decay of the first moment, for adam and adamw."""
    beta2: float = 0.999
    """Decay of the second moment, for adam and adamw."""
    weight_decay: pydantic.NonNegativeFloat = 0.0
    """L2 penalty, added to the gradient; adamw shrinks the weights themselves."""
    schedule: Schedule = Schedule()
    """How the learning rate changes."""


class OptimizerConfig(Section):
    """How weights are updated."""

    sparse: SparseOptimizerConfig = SparseOptimizerConfig()
    dense: DenseOptimizerConfig = DenseOptimizerConfig()


class Optimizers:
    """All optimizers of a sharded model.

    Args:
        model: The sharded model, fused optimizers inside.
        replicated: Names of the tables that every rank holds whole.
        config: The optimizers and their schedules.

    Attributes:
        fused: The optimizer of the sharded tables.
        combined: All of them as one, for the training pipeline.
    """

    def __init__(self, model: DistributedModelParallel, replicated: Iterable[str], config: OptimizerConfig) -> None:
        tables, dense = _split(dict(in_backward_optimizer_filter(model.named_parameters())), set(replicated))
        self._config = config
        self.fused: KeyedOptimizer = model.fused_optimizer
        self._replicated = _keyed(tables, REPLICATED.get(config.sparse.name), _sparse_options(config.sparse))
        self._dense = _keyed(dense, DENSE[config.dense.name], _dense_options(config.dense))
        self.combined = CombinedOptimizer([self.fused, *self._replicated, *self._dense])

    def set_rates(self, step: int) -> None:
        """Sets the learning rates of a step; the first step is 1. Takes effect with the step's `zero_grad`."""
        for optimizers, config in (
            ([self.fused, *self._replicated], self._config.sparse),
            (self._dense, self._config.dense),
        ):
            _set_rate(optimizers, config.learning_rate * factor(config.schedule, step))

    def stand_still(self) -> None:
        """Sets all learning rates to zero until `set_rates` sets them again: a step changes no weight."""
        _set_rate([self.fused, *self._replicated, *self._dense], 0.0)

    def replicated_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name and the state of every replicated table's parameter."""
        return _states(self._replicated)

    def dense_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name and the state of every dense parameter."""
        return _states(self._dense)


def check_sparse_optimizer(config: SparseOptimizerConfig, device_type: str) -> None:
    """Refuses a table optimizer that the device lacks.

    Raises:
        ValueError: FBGEMM has no such optimizer for a CPU.
    """
    if device_type == "cpu" and config.name not in ON_CPU:
        raise ValueError(
            f"optimizer.sparse.name is '{config.name}', which FBGEMM does not have on a CPU; "
            f"use one of {', '.join(ON_CPU)}, or a GPU"
        )


def fuse(tables: nn.Module, config: SparseOptimizerConfig) -> None:
    """Marks the tables' parameters, still on the meta device, for an update inside backward."""
    for parameter in tables.parameters():  # one call each: TorchRec changes the options that it is given
        apply_optimizer_in_backward(FUSED[config.name], [parameter], _sparse_options(config))


def _sparse_options(config: SparseOptimizerConfig) -> dict[str, Any]:
    options: dict[str, Any] = {"lr": config.learning_rate}
    if config.name not in ("sgd", "lars_sgd"):
        options["eps"] = config.eps
    if "adam" in config.name or "lamb" in config.name:
        options["betas"] = (config.beta1, config.beta2)
    return options


def _dense_options(config: DenseOptimizerConfig) -> dict[str, Any]:
    options: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.name == "sgd":
        return options | {"momentum": config.momentum}
    options["eps"] = config.eps
    if config.name in ("adam", "adamw"):
        options["betas"] = (config.beta1, config.beta2)
    return options


def _split(
    parameters: dict[str, nn.Parameter], replicated: set[str]
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Parts the parameters of replicated tables, `...embedding_bags.TABLE.weight`, from the dense ones."""
    tables = {
        name: parameter
        for name, parameter in parameters.items()
        if "embedding_bags." in name and name.split(".")[-2] in replicated
    }
    return tables, {name: parameter for name, parameter in parameters.items() if name not in tables}


def _keyed(
    parameters: dict[str, nn.Parameter], optimizer: type[torch.optim.Optimizer] | None, options: dict[str, Any]
) -> list[KeyedOptimizer]:
    if not parameters:
        return []
    assert optimizer is not None, "check_planner refuses replicated tables for this optimizer"
    return [KeyedOptimizerWrapper(parameters, lambda values: optimizer(values, **options))]


def _set_rate(optimizers: list[KeyedOptimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate  # pyrefly: ignore[unsupported-operation]


def _states(optimizers: list[KeyedOptimizer]) -> Iterator[tuple[str, dict[str, Any]]]:
    for optimizer in optimizers:
        yield from optimizer.state_dict()["state"].items()
