"""TorchRec's planner, for `benchmarks.planners`."""

from typing import Any

from torch import Tensor, nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import (
    EmbeddingPerfEstimator,
    EmbeddingStorageEstimator,
    _get_optimizer_multipler,
)
from torchrec.distributed.planner.stats import NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    ShardingOption,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.planner.types import Topology as TorchrecTopology
from torchrec.distributed.types import ShardingPlan

from benchmarks.torchrec_estimate import Bandwidths
from torchx_recsys.planner.shard_memory import STATE_BYTES
from trainer.config.optimizer import OptimizerConfig
from trainer.config.root import Config
from trainer.models.embeddings import name_in_model, table_of_name
from trainer.optim.table_optimizers import TABLE_OPTIMIZERS
from trainer.plan.sharding import sharders
from trainer.plan.tables import kinds_to_choose

# Without a choice of kernels, TorchRec also tries kernels for tables on the host. This takes five times as long, and
# yields a plan with such a kernel only if nothing else fits.
KERNELS = ["fused", "dense"]


def torchrec_plan(model: nn.Module, config: Config, topology: Bandwidths) -> ShardingPlan:
    """Returns the plan of TorchRec's planner."""
    of_torchrec, constraints = topology_of(topology), _constraints(config)
    estimators = [
        EmbeddingPerfEstimator(topology=of_torchrec, constraints=constraints),
        MemoryEstimator(of_torchrec, constraints, config.optimizer),
    ]
    planner = EmbeddingShardingPlanner(
        topology=of_torchrec,
        batch_size=topology.batch_size,
        enumerator=EmbeddingEnumerator(of_torchrec, topology.batch_size, constraints, estimators),
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # the reserve is left out already
        stats=NoopEmbeddingStats(),
        debug=False,
    )
    return planner.plan(model, sharders(config.comms))


def topology_of(topology: Bandwidths) -> TorchrecTopology:
    """Returns TorchRec's form of a topology."""
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=topology.ranks, local_world_size=topology.per_host),
        HardwareConfig(
            hbm_cap_bytes=topology.gpu_bytes or None,
            ddr_cap_bytes=topology.host_bytes,  # TorchRec does not detect it: 128 GB per rank
            hbm_mem_bw=topology.gpu_bandwidth,
            ddr_mem_bw=topology.host_bandwidth,
            hbm_to_ddr_mem_bw=topology.pcie_bandwidth,
            intra_host_bw=topology.intra_bandwidth,
            inter_host_bw=topology.inter_bandwidth,
        ),
        # Without the flag, the bandwidths of HardwareConfig are ignored.
        KernelConfig(compute_device="cuda" if topology.on_gpu else "cpu", use_hardware_based_bandwidth=True),
    )


def _constraints(config: Config) -> dict[str, ParameterConstraints]:
    return {
        name_in_model(table): ParameterConstraints(
            sharding_types=kinds_to_choose(table, config, config.planner),
            compute_kernels=config.planner.tables[table].compute_kernels or KERNELS,
            min_partition=config.planner.min_columns,
            pooling_factors=[config.data.sparse[name].hotness for name in names],
        )
        for table, names in config.data.features_of_tables().items()
    }


class MemoryEstimator(EmbeddingStorageEstimator):
    """TorchRec's estimate of a shard's memory, with optimizer state as allocated.

    TorchRec splits row-wise state among column shards, though every column shard has its own.

    Args:
        topology: The topology.
        constraints: TorchRec's constraints of the tables.
        optimizer: The optimizers.
    """

    def __init__(self, topology: TorchrecTopology, constraints: dict[str, Any], optimizer: OptimizerConfig) -> None:
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
        if self._on_gpu and "uvm" not in option.compute_kernel:
            shard.storage.hbm += state
        else:
            shard.storage.ddr += state


def _counted_by_torchrec(table: Tensor, values: int) -> int:
    optimizer = getattr(table, "_optimizer_classes", [None])[0]
    return round(values * table.element_size() * _get_optimizer_multipler(optimizer, table.shape))


def state_bytes(rows: int, columns: int, table: str, config: OptimizerConfig) -> int:
    """Returns the bytes of a shard's optimizer state.

    Args:
        rows: Rows of the shard.
        columns: Columns of the shard.
        table: Table of the shard.
        config: The optimizers.
    """
    slots = TABLE_OPTIMIZERS[config.of_table(table).name].slots
    return STATE_BYTES * rows * sum(columns if dimensions == 2 else 1 for dimensions in slots)
