"""All optimizers of a sharded model as one: those of the tables, fused into backward, and the dense ones."""

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizer
from torchrec.optim.optimizers import in_backward_optimizer_filter

from trainer.config.optim import OptimizerConfig
from trainer.models.embeddings import table_of_weight
from trainer.optim.dense_optimizers import dense_optimizers
from trainer.optim.rates import learning_rates
from trainer.optim.sharded_tables import ShardedTableOptimizers


class Optimizers:
    """All optimizers of a sharded model.

    Args:
        model: The sharded model, fused optimizers inside.
        replicated: Names of the tables that every rank holds whole.
        config: The optimizers and their schedules.
        steps_per_epoch: Steps of an epoch, for schedules that count epochs.

    Attributes:
        tables: The optimizers of the tables.
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
        self.tables = ShardedTableOptimizers(model, tables, config)
        self._dense = dense_optimizers(dense, config.dense)
        self.combined = CombinedOptimizer([self.tables.fused, *self.tables.replicated, *self._dense.values()])
        self._rates, self._steps_per_epoch = learning_rates(config), steps_per_epoch
        self.set_rates(1)  # refuses an unknown schedule at once

    def rates(self, step: int) -> dict[str, float]:
        """Returns the learning rates of a step, by the key of what they are for; the first step is 1."""
        return {key: rate.at(step, self._steps_per_epoch) for key, rate in self._rates.items()}

    def gradient_norm(self) -> float:
        """Returns the norm of the dense weights' gradients after a step, that of the global batch on every rank."""
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

    def set_rates_to_zero(self) -> None:
        """Sets all learning rates to zero until `set_rates` sets them again: a step changes no weight."""
        self.tables.set_rates_to_zero()
        for optimizer in self._dense.values():
            _set_rate(optimizer, 0.0)

    def dense_state(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name and the state of every dense parameter that trains."""
        for optimizer in self._dense.values():
            yield from optimizer.state_dict()["state"].items()


def _set_rate(optimizer: KeyedOptimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate  # pyrefly: ignore[unsupported-operation]
