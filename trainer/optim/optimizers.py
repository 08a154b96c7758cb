"""All optimizers of a sharded model as one: those of the tables, fused into backward, and the dense one."""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from trainer.config.optim import OptimizerConfig
from trainer.models.embeddings import table_of_weight
from trainer.optim.dense_optimizers import dense_optimizers
from trainer.optim.rates import learning_rates
from trainer.optim.table_optimizers import TABLE_OPTIMIZERS, table_options


class Optimizers:
    """All optimizers of a sharded model.

    Args:
        model: The sharded model, fused optimizers inside.
        replicated: Names of the tables that every rank holds whole.
        config: The optimizers and their schedules.
        steps_per_epoch: Steps of an epoch, for schedules that count epochs.

    Attributes:
        fused: The optimizer of the sharded tables.
        combined: All of them as one, for the training pipeline.
        dense_parameters: All weights that train but the tables.
    """

    def __init__(
        self,
        model: DistributedModelParallel,
        replicated: Collection[str],
        config: OptimizerConfig,
        steps_per_epoch: int,
    ) -> None:
        # The filter leaves out fused parameters. Replicated tables remain: TorchRec drops their fused optimizer, and
        # without one of their own they would never train.
        parameters = dict(in_backward_optimizer_filter(model.named_parameters()))
        tables = {name: parameter for name, parameter in parameters.items() if table_of_weight(name) in replicated}
        dense = {
            name: parameter for name, parameter in parameters.items() if name not in tables and parameter.requires_grad
        }
        self.dense_parameters = [*dense.values()]
        self.fused: KeyedOptimizer = model.fused_optimizer
        self._replicated = _keyed(tables, TABLE_OPTIMIZERS[config.sparse.name].replicated, table_options(config.sparse))
        self._dense = dense_optimizers(dense, config.dense)
        self.combined = CombinedOptimizer([self.fused, *self._replicated, *self._dense.values()])
        self._rates, self._steps_per_epoch = learning_rates(config), steps_per_epoch
        self.set_rates(1)  # refuses an unknown schedule at once

    def rates(self, step: int) -> dict[str, float]:
        """Returns the learning rates of a step, by the key of what they are for; the first step is 1."""
        return {key: rate.at(step, self._steps_per_epoch) for key, rate in self._rates.items()}

    def set_rates(self, step: int) -> None:
        """Sets the learning rates of a step, before its `zero_grad`."""
        optimizers = {"sparse": [self.fused, *self._replicated]} | {key: [one] for key, one in self._dense.items()}
        for key, rate in self.rates(step).items():
            _set_rate(optimizers.get(key, []), rate)

    def set_rates_to_zero(self) -> None:
        """Sets all learning rates to zero until `set_rates` sets them again: a step changes no weight."""
        _set_rate([self.fused, *self._replicated, *self._dense.values()], 0.0)

    def replicated_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name and the state of every replicated table's parameter."""
        return _states(self._replicated)

    def dense_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name and the state of every dense parameter that trains."""
        return _states([*self._dense.values()])


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
            # Fused kernels keep rates as float32, so they are always set from the configuration, never read back.
            group["lr"] = rate  # pyrefly: ignore[unsupported-operation]


def _states(optimizers: list[KeyedOptimizer]) -> Iterator[tuple[str, dict[str, Any]]]:
    for optimizer in optimizers:
        yield from optimizer.state_dict()["state"].items()
