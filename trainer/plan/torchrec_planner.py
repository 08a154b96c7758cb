"""TorchRec's planner, for comparison: planner.engine = "torchrec"."""

import re

from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.planner.stats import NoopEmbeddingStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    HardwareConfig,
    KernelConfig,
    PlannerError,
    PlannerErrorType,
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.types import ShardingPlan

from trainer.config.data import DataConfig
from trainer.config.plan import PlannerConfig, TablePlan
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.embeddings import name_in_model, table_of_name
from trainer.plan.plan_file import shards_of, table_plans
from trainer.plan.search.options import LANES
from trainer.plan.search.problem import Ranks
from trainer.plan.search.solve import NothingFits
from trainer.plan.sharding import sharders
from trainer.plan.storage import StorageEstimator
from trainer.plan.tables import kinds_of, no_option, odd_columns

# The message, a plain RuntimeError, where a table's kernels and sharding types leave nothing to choose from.
NO_OPTION = re.compile(
    r"No available sharding type.* constraints for (?P<table>.*?)\. .*device: (?P<device>\w+)", re.DOTALL
)
# Without a choice of kernels TorchRec tries those for tables on the host, too, which takes five times as long, and
# finds a plan with one of them only where nothing else fits.
KERNELS = ["fused", "dense"]


def torchrec_plan(model: nn.Module, config: Config, planner: PlannerConfig, ranks: Ranks) -> ShardingPlan:
    """Returns the plan of TorchRec's planner.

    Raises:
        InputError: A table cannot be sharded as allowed.
        NothingFits: It finds no plan that fits the memory.
    """
    try:
        plan = _planner(config, planner, ranks).plan(model, sharders(config.comms))
    except PlannerError as error:
        if error.error_type in (PlannerErrorType.INSUFFICIENT_STORAGE, PlannerErrorType.PARTITION):
            raise NothingFits(is_proven=False) from error
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"the tables cannot be placed: {reason}; allow more planner.sharding_types") from error
    except RuntimeError as error:
        found = NO_OPTION.search(str(error))
        if not found:
            raise
        raise no_option(table_of_name(found["table"]), found["device"]) from error
    _check_columns(plan)
    return plan


def _planner(config: Config, planner: PlannerConfig, ranks: Ranks) -> EmbeddingShardingPlanner:
    topology, constraints = topology_of(ranks), _constraints(config.data, planner)
    estimators = [
        EmbeddingPerfEstimator(topology=topology, constraints=constraints),
        StorageEstimator(topology, constraints, config.optimizer),
    ]
    return EmbeddingShardingPlanner(
        topology=topology,
        batch_size=ranks.batch_size,
        enumerator=EmbeddingEnumerator(topology, ranks.batch_size, constraints, estimators),
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(0.0),  # the reserved part is left out already
        stats=NoopEmbeddingStats(),  # `render_plan` prints less: TorchRec's tables take hundreds of lines
        debug=False,
    )


def topology_of(ranks: Ranks) -> Topology:
    """Returns the ranks as TorchRec has them."""
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=ranks.number, local_world_size=ranks.per_host),
        HardwareConfig(
            hbm_cap_bytes=ranks.gpu_bytes or None,
            ddr_cap_bytes=ranks.host_bytes,  # TorchRec detects none, and assumes 128 GB for each rank
            hbm_mem_bw=ranks.gpu_bandwidth,
            ddr_mem_bw=ranks.host_bandwidth,
            hbm_to_ddr_mem_bw=ranks.pcie_bandwidth,
            intra_host_bw=ranks.intra_bandwidth,
            inter_host_bw=ranks.inter_bandwidth,
        ),
        # Without the flag, the bandwidths of HardwareConfig are ignored.
        KernelConfig(compute_device="cuda" if ranks.on_gpu else "cpu", use_hardware_based_bandwidth=True),
    )


def _constraints(data: DataConfig, planner: PlannerConfig) -> dict[str, ParameterConstraints]:
    return {
        name_in_model(table): ParameterConstraints(
            sharding_types=kinds_of(table, planner),
            compute_kernels=planner.tables.get(table, TablePlan()).compute_kernels or KERNELS,
            min_partition=planner.min_columns,
            pooling_factors=[data.sparse[name].hotness for name in names],
        )
        for table, names in data.features_of_tables().items()
    }


def _check_columns(plan: ShardingPlan) -> None:
    for name, table in table_plans(plan).items():
        for columns in {shard.shard_sizes[1] for shard in shards_of(table)}:
            if columns % LANES:
                raise odd_columns(name, columns)
