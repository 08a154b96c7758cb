"""The optimizers of all tables of a sharded model: fused ones of their shards, and those of replicated tables."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, cast

from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper

from trainer.config.optim import OptimizerConfig
from trainer.core.local_shards import local_shards_of
from trainer.models.embeddings import table_of_weight
from trainer.optim.rates import table_key
from trainer.optim.table_kernels import table_kernels
from trainer.optim.table_optimizers import replicated_optimizer

ALL = ""  # in place of a table's name: those without settings of their own
ACCUMULATORS = ("momentum1", "sum")  # of FBGEMM's Adagrad, and of the one for replicated tables


class ShardedTableOptimizers:
    """The optimizers of all tables of a sharded model.

    Args:
        model: The sharded model, fused optimizers inside.
        replicated: Weights of the tables that every rank holds whole, by parameter name.
        config: The optimizers and their schedules.

    Attributes:
        fused: The optimizer of the sharded tables.
        replicated: Those of the replicated tables.
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
        self.fill_accumulators()

    def set_rates(self, rates: Mapping[str, float], steps_taken: int) -> None:
        """Sets the learning rates of a step, and the number of steps taken before it, which Adam's updates depend on.

        Args:
            rates: The rates by the key of what they are for.
            steps_taken: Steps before it that changed weights.
        """
        for table, group in self._groups:
            # Fused kernels keep rates as float32, so they are always set from the configuration, never read back.
            group["lr"] = rates.get(table_key(table), rates["sparse"])
        # FBGEMM counts its forward passes instead, those of evaluations, too, and begins anew in a resumed run.
        for kernel in self._kernels:
            if kernel.counts_steps:
                kernel.set_steps_taken(self.earlier_steps + steps_taken)

    def set_rates_to_zero(self) -> None:
        """Sets all learning rates to zero until `set_rates` sets them again."""
        for _, group in self._groups:
            group["lr"] = 0.0

    def fill_accumulators(self) -> None:
        """Sets the accumulators that are configured to start from another value than 0."""
        for name, slots in self._states():
            start = self._config.of_table(table_of_weight(name) or ALL).initial_accumulator
            for slot, value in slots.items():
                if start and slot.rpartition(".")[2] in ACCUMULATORS:
                    for local_shard in local_shards_of(value):
                        local_shard.fill_(start)

    def forget_cached_rows(self) -> None:
        """Empties the caches on a GPU of tables in host memory, whose rows there are about to change."""
        for kernel in self._kernels:
            kernel.reset_cache_states()

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
    """Yields every group of parameters with one of the tables that it holds, which all have the same settings."""
    tables = {id(value): table_of_weight(name) or ALL for name, value in optimizer.params.items()}
    for group in optimizer.param_groups:
        if group["params"]:
            yield tables[id(group["params"][0])], cast(MutableMapping[str, Any], group)
