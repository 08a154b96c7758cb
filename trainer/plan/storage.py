"""Memory of what is kept beside a table: its optimizer's state and its averages, for the planner to count."""

from typing import Any

from torch import Tensor
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator, _get_optimizer_multipler
from torchrec.distributed.planner.types import ShardingOption, Topology

from trainer.config.optim import OptimizerConfig
from trainer.models.embeddings import table_of_name
from trainer.optim.table_optimizers import TABLE_OPTIMIZERS

STATE_BYTES = 4  # of each value of a state or an average, whatever the table's precision


class StorageEstimator(EmbeddingStorageEstimator):
    """TorchRec's estimate of a shard's memory, with optimizer state and averages as they are allocated.

    TorchRec knows no averages, counts one value of state for each weight of LAMB, which has two, and takes row-wise
    state for a part of the table, though every column shard has one of its own.

    Args:
        topology: The ranks.
        constraints: TorchRec's constraints of the tables.
        optimizer: The optimizers and averages.
    """

    def __init__(self, topology: Topology, constraints: dict[str, Any], optimizer: OptimizerConfig) -> None:
        super().__init__(topology=topology, constraints=constraints)
        self._on_gpu, self._optimizer = topology.compute_device == "cuda", optimizer

    def estimate(self, sharding_options: list[ShardingOption], *args: Any, **kwargs: Any) -> None:
        """Sets the memory of every shard of every option."""
        super().estimate(sharding_options, *args, **kwargs)
        for option in sharding_options:
            for shard in option.shards:
                self._count_beside(option, shard)

    def _count_beside(self, option: ShardingOption, shard: Any) -> None:
        rows, columns = shard.size
        state = state_bytes(rows, columns, table_of_name(option.name), self._optimizer)
        state -= _counted_by_torchrec(option.tensor, rows * columns)
        averages = average_bytes(rows, columns, option.tensor.element_size(), self._optimizer)
        # State is where the table is, averages are on the device even if the table is not.
        if self._on_gpu:
            shard.storage.hbm += averages
        else:
            shard.storage.ddr += averages
        if self._on_gpu and "uvm" not in option.compute_kernel:
            shard.storage.hbm += state
        else:
            shard.storage.ddr += state


def _counted_by_torchrec(table: Tensor, values: int) -> int:
    optimizer = getattr(table, "_optimizer_classes", [None])[0]
    return round(values * table.element_size() * _get_optimizer_multipler(optimizer, table.shape))


def state_bytes(rows: int, columns: int, table: str, config: OptimizerConfig) -> int:
    """Returns the bytes of the optimizer's state of a shard.

    Args:
        rows: Its rows.
        columns: Its columns.
        table: The table that it is of.
        config: The optimizers.
    """
    slots = TABLE_OPTIMIZERS[config.of_table(table).name].slots
    return STATE_BYTES * rows * sum(columns if dimensions == 2 else 1 for dimensions in slots)


def average_bytes(rows: int, columns: int, value_bytes: int, config: OptimizerConfig) -> int:
    """Returns the bytes of a shard's averages, and of its trained weights while the averages are in their place.

    Args:
        rows: Its rows.
        columns: Its columns.
        value_bytes: Bytes of each of its values.
        config: The averages.
    """
    if not config.ema.tables:
        return 0
    aside = rows * columns * value_bytes if config.ema.evaluate else 0
    return STATE_BYTES * rows * (columns + 1) + aside  # one value for each row: the step that it was last touched in
