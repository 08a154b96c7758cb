"""All optimizers of a sharded model as one: the table optimizers, fused into backward, and the dense optimizers."""

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from trainer.config.optimizer import OptimizerConfig
from trainer.core.distributed import local_shards_of
from trainer.models.embeddings import table_of_weight
from trainer.optim.dense_optimizers import dense_optimizers
from trainer.optim.schedules import learning_rates, table_key
from trainer.optim.table_kernels import table_kernels
from trainer.optim.table_optimizers import replicated_optimizer

ALL = ""  # stands for all tables without their own settings, in place of a table's name
ACCUMULATORS = ("momentum1", "sum")  # names of the accumulator in FBGEMM's Adagrad, and in that of replicated tables


class Optimizers:
    """All optimizers of a sharded model.

    Args:
        model: The sharded model, fused optimizers inside.
        replicated: Names of the tables that every rank holds whole.
        config: The optimizers and their schedules.
        steps_per_epoch: Steps of an epoch, for schedules that count epochs.

    Attributes:
        tables: The optimizers of the tables.
        combined: All optimizers as one, for the training pipeline, which sets gradients to zero with it.
        dense_parameters: All trained weights except the tables.
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
        self._names = [name.removeprefix("model.") for name in dense]
        self.tables = ShardedTableOptimizers(model, tables, config)
        self._dense = dense_optimizers(dense, config.dense)
        self.combined = CombinedOptimizer([self.tables.fused, *self.tables.replicated, *self._dense.values()])
        self._rates, self._steps_per_epoch = learning_rates(config), steps_per_epoch
        # TorchRec's wrappers of them only pass a step on, and take 35 us of a step of 1.9 ms.
        self._outside_backward = [
            cast(KeyedOptimizerWrapper, one)._optimizer for one in (*self.tables.replicated, *self._dense.values())
        ]
        self.set_rates(1)  # refuses an unknown schedule at once

    def rates(self, step: int) -> dict[str, float]:
        """Returns the learning rates of a step, by their key in `[optimizer]`; the first step is 1."""
        return {key: rate.at(step, self._steps_per_epoch) for key, rate in self._rates.items()}

    def gradients(self) -> dict[str, Tensor | None]:
        """Returns the gradients of the dense weights by name; None for a weight that the step did not use."""
        return {name: weight.grad for name, weight in zip(self._names, self.dense_parameters, strict=True)}

    def gradient_norm(self) -> float:
        """Returns the norm of the dense gradients of the global batch; the same on every rank."""
        gradients = [weight.grad for weight in self.dense_parameters if weight.grad is not None]
        return torch.nn.utils.get_total_norm(gradients).item()

    def set_rates(self, step: int, skipped: int = 0) -> None:
        """Sets the learning rates of a step, before its `zero_grad`.

        Args:
            step: The step; the first is 1.
            skipped: Steps before it that changed no weight.
        """
        rates = self.rates(step)
        self.tables.set_rates(rates, step - 1 - skipped)
        for key, optimizer in self._dense.items():
            _set_rate(optimizer, rates[key])

    def step(self) -> None:
        """Updates the dense part and replicated tables; backward has updated the sharded tables."""
        for optimizer in self._outside_backward:
            optimizer.step()

    def create_dense_state(self) -> None:
        """Has the dense optimizers allocate their state, all zero, by a step at rate zero that changes no weight.

        Torch's optimizers have no state before a weight's first step. A checkpoint would lack it, a restore skip it.
        """
        # TorchRec's init_state() takes a step at the full rate, where weight decay would move the weights.
        for optimizer in self._dense.values():
            _set_rate(optimizer, 0.0)
        for weight in self.dense_parameters:
            weight.grad = torch.ones_like(weight)
        for optimizer in self._dense.values():
            optimizer.step()
            optimizer.zero_grad()
        for _, slots in self.dense_state():
            for value in slots.values():
                if value is not None:
                    value.zero_()
        self.set_rates(1)

    def dense_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name and the state of every dense parameter that trains."""
        for optimizer in self._dense.values():
            yield from optimizer.state_dict()["state"].items()


def _set_rate(optimizer: KeyedOptimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate  # pyrefly: ignore[unsupported-operation]


class ShardedTableOptimizers:
    """The optimizers of all tables of a sharded model.

    Args:
        model: The sharded model, fused optimizers inside.
        replicated: Weights of the tables that every rank holds whole, by parameter name.
        config: The optimizers and their schedules.

    Attributes:
        fused: The optimizer of the sharded tables.
        replicated: The optimizers of the replicated tables.
        earlier_steps: Steps that the optimizers' state had taken before this run, as fine-tuning loads it.
    """

    def __init__(
        self, model: DistributedModelParallel, replicated: Mapping[str, nn.Parameter], config: OptimizerConfig
    ) -> None:
        self.fused: KeyedOptimizer = model.fused_optimizer
        self.replicated = [_replicated_optimizer(name, weight, config) for name, weight in replicated.items()]
        self.earlier_steps = 0
        self._config = config
        self._kernels = table_kernels(model)
        self._groups = [one for optimizer in self._all() for one in _groups(optimizer)]
        self._fill_accumulators()

    def set_rates(self, rates: Mapping[str, float], steps_taken: int) -> None:
        """Sets the learning rates of a step, and the number of steps taken before it, which Adam's updates depend on.

        Args:
            rates: The rates, by their key in `[optimizer]`.
            steps_taken: Steps before it that changed weights.
        """
        for table, group in self._groups:
            # Fused kernels keep rates as float32, so they are always set from the configuration, never read back.
            group["lr"] = rates.get(table_key(table), rates["sparse"])
        # FBGEMM counts its forward passes instead, also in evaluations, and starts again in a resumed run.
        for kernel in self._kernels:
            if kernel.counts_steps:
                kernel.set_steps_taken(self.earlier_steps + steps_taken)

    def _fill_accumulators(self) -> None:
        """Sets the accumulators to their configured initial value, where it is not 0."""
        for name, slots in self._states():
            start = self._config.of_table(table_of_weight(name) or ALL).initial_accumulator
            for slot, value in slots.items():
                if start and slot.rpartition(".")[2] in ACCUMULATORS:
                    for local_shard in local_shards_of(value):
                        local_shard.fill_(start)

    def replicated_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name and the state of every replicated table's weight."""
        for optimizer in self.replicated:
            yield from optimizer.state_dict()["state"].items()

    def _all(self) -> list[KeyedOptimizer]:
        return [self.fused, *self.replicated]

    def _states(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for optimizer in self._all():
            yield from optimizer.state_dict()["state"].items()


def _replicated_optimizer(name: str, weight: nn.Parameter, config: OptimizerConfig) -> KeyedOptimizer:
    settings = config.of_table(table_of_weight(name) or ALL)
    return KeyedOptimizerWrapper(
        {name: weight}, lambda weights: replicated_optimizer(settings, cast(list[Tensor], weights))
    )


def _groups(optimizer: KeyedOptimizer) -> Iterator[tuple[str, MutableMapping[str, Any]]]:
    """Yields every parameter group with one of its tables, which all have the same settings."""
    tables = {id(value): table_of_weight(name) or ALL for name, value in optimizer.params.items()}
    for group in optimizer.param_groups:
        if group["params"]:
            yield tables[id(group["params"][0])], cast(MutableMapping[str, Any], group)
