"""The planner: places tables and their shards on ranks."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.constants import HBM_MEM_BW
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
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from trainer.config.data import DataConfig
from trainer.config.optim import OptimizerConfig
from trainer.config.plan import SHARDING_TYPES, PlannerConfig, TablePlan
from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError, nearest
from trainer.models.embeddings import name_in_model, table_of_name, table_shapes, value_bytes
from trainer.plan.communication import REDUCING
from trainer.plan.hardware import HOSTS, Host
from trainer.plan.memory import GIB, host_memory_bytes, table_bytes
from trainer.plan.plan_file import load_plan, shards_of, table_plans
from trainer.plan.storage import StorageEstimator

GB_PER_SECOND = 1e9 / 1e3  # TorchRec counts bandwidth in bytes per millisecond
BANDWIDTHS = {
    "intra_node_gb_per_second": "intra_host_bw",
    "inter_node_gb_per_second": "inter_host_bw",
    "hbm_gb_per_second": "hbm_mem_bw",
}
# TorchRec's message, a plain RuntimeError, where a table's kernels and sharding types leave nothing to choose from.
NO_OPTION = re.compile(
    r"No available sharding type.* constraints for (?P<table>.*?)\. .*device: (?P<device>\w+)", re.DOTALL
)
# TorchRec's own defaults, which its planner uses for hardware that it is given no figures of.
UNKNOWN_HARDWARE = {
    "intra_node_gb_per_second": 600.0,
    "inter_node_gb_per_second": 12.5,
    "hbm_gb_per_second": HBM_MEM_BW / GB_PER_SECOND,
}


def make_plan(
    model: nn.Module,
    sharders: list[ModuleSharder[Any]],
    data: DataConfig,
    config: PlannerConfig,
    optimizer: OptimizerConfig,
    context: DistributedContext,
) -> ShardingPlan:
    """Plans on rank 0, or loads the plan that the configuration names, and returns it on every rank.

    Raises:
        InputError: The plan does not fit the memory, or does not belong to these tables and ranks.
    """
    if config.plan:
        return load_plan(config.plan, table_shapes(model), context.world_size)
    planner = _planner(data, config, optimizer, context.world_size, context.local_world_size, context.device.type)
    with _explained(model, data, config, context.world_size):
        return _checked(planner.collective_plan(model, sharders, dist.group.WORLD))


def plan_for(
    model: nn.Module,
    sharders: list[ModuleSharder[Any]],
    data: DataConfig,
    config: PlannerConfig,
    optimizer: OptimizerConfig,
    world_size: int,
    local_world_size: int,
    device_type: str,
) -> ShardingPlan:
    """Plans for hypothetical ranks, without a process group.

    Raises:
        InputError: The plan does not fit the memory.
    """
    with _explained(model, data, config, world_size):
        planner = _planner(data, config, optimizer, world_size, local_world_size, device_type)
        return _checked(planner.plan(model, sharders))


def _planner(
    data: DataConfig,
    config: PlannerConfig,
    optimizer: OptimizerConfig,
    world_size: int,
    local_world_size: int,
    device_type: str,
) -> EmbeddingShardingPlanner:
    ranks, constraints = topology(config, world_size, local_world_size, device_type), _constraints(data, config)
    batch_size = data.global_batch_size // world_size
    estimators = [
        EmbeddingPerfEstimator(topology=ranks, constraints=constraints),
        StorageEstimator(ranks, constraints, optimizer),
    ]
    return EmbeddingShardingPlanner(
        topology=ranks,
        batch_size=batch_size,
        enumerator=EmbeddingEnumerator(ranks, batch_size, constraints, estimators),
        constraints=constraints,
        storage_reservation=FixedPercentageStorageReservation(config.reserve),
        stats=NoopEmbeddingStats(),  # `render_plan` prints less: TorchRec's tables take hundreds of lines
        debug=False,
    )


def topology(config: PlannerConfig, world_size: int, local_world_size: int, device_type: str) -> Topology:
    """Returns the ranks with the memory and the bandwidths that the planner counts with."""
    config = _with_hardware(config, local_world_size)
    host = int(config.host_memory_gib * GIB) if config.host_memory_gib else host_memory_bytes() // local_world_size
    if device_type == "cpu":
        host = int(host * (1 - config.reserve))  # TorchRec's own reservation only cuts GPU memory
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=world_size, local_world_size=local_world_size),
        HardwareConfig(
            hbm_cap_bytes=_gpu_memory_bytes(config, device_type),
            ddr_cap_bytes=host,  # TorchRec detects none, and assumes 128 GB for each rank
            **{name: getattr(config, key) * GB_PER_SECOND for key, name in BANDWIDTHS.items()},
        ),
        # Without the flag, the bandwidths of HardwareConfig are ignored.
        KernelConfig(compute_device=device_type, use_hardware_based_bandwidth=True),
    )


def _with_hardware(config: PlannerConfig, local_world_size: int) -> PlannerConfig:
    """Returns the configuration with its unset figures set: to those of its hardware, else to TorchRec's defaults."""
    figures: dict[str, float | None] = dict(UNKNOWN_HARDWARE)
    if host := host_of(config):
        figures |= {"host_memory_gib": host.memory_gib / local_world_size}
        figures |= (
            {"inter_node_gb_per_second": host.network_gb_per_second_per_gpu} if host.network_gb_per_second else {}
        )
        if host.gpu:
            figures |= {"memory_gib": host.gpu.memory_gib, "hbm_gb_per_second": host.gpu.hbm_gb_per_second}
            figures |= {"intra_node_gb_per_second": host.gpu.nvlink_gb_per_second}
    return config.model_copy(update={key: value for key, value in figures.items() if getattr(config, key) is None})


def host_of(config: PlannerConfig) -> Host | None:
    """Returns the kind of host that is planned for, or None for this machine."""
    return HOSTS[config.hardware] if config.hardware else None


def _gpu_memory_bytes(config: PlannerConfig, device_type: str) -> int | None:
    if device_type == "cpu":
        return None
    if config.memory_gib:
        return int(config.memory_gib * GIB)
    return torch.cuda.get_device_properties(0).total_memory


def check_planner(data: DataConfig, config: PlannerConfig) -> None:
    """Refuses unknown hosts, sharding types, kernels and tables.

    Raises:
        InputError: The message names the key, the value and what is allowed.
    """
    if config.hardware and config.hardware not in HOSTS:
        raise InputError(
            f"planner.hardware is '{config.hardware}', which is no known host{nearest(config.hardware, HOSTS)}"
        )
    tables = set(data.features_of_tables())
    kernels = [kernel.value for kernel in EmbeddingComputeKernel]
    choices = {"planner.sharding_types": config.sharding_types}
    for name, table in config.tables.items():
        if name not in tables:
            raise InputError(f"planner.tables.{name}: there is no such table{nearest(name, tables)}")
        choices[f"planner.tables.{name}.sharding_types"] = table.sharding_types
        for kernel in set(table.compute_kernels) - set(kernels):
            raise InputError(f"planner.tables.{name}.compute_kernels holds '{kernel}'{nearest(kernel, kernels)}")
    for key, types in choices.items():
        for kind in set(types) - set(SHARDING_TYPES):
            raise InputError(f"{key} holds '{kind}', which is no sharding type{nearest(kind, SHARDING_TYPES)}")


def _constraints(data: DataConfig, config: PlannerConfig) -> dict[str, ParameterConstraints]:
    return {
        name_in_model(table): ParameterConstraints(
            sharding_types=_types_for(table, config),
            compute_kernels=config.tables.get(table, TablePlan()).compute_kernels or None,
            min_partition=config.min_columns,
            pooling_factors=[data.sparse[name].hotness for name in names],
        )
        for table, names in data.features_of_tables().items()
    }


def _types_for(table: str, config: PlannerConfig) -> list[str]:
    if config.mode == "data_parallel":
        return ["data_parallel"]
    return config.tables.get(table, TablePlan()).sharding_types or config.sharding_types or list(SHARDING_TYPES)


@contextmanager
def _explained(model: nn.Module, data: DataConfig, config: PlannerConfig, world_size: int) -> Iterator[None]:
    try:
        yield
    except PlannerError as error:
        raise InputError(_explain(error, model, data, config, world_size)) from error
    except RuntimeError as error:
        found = NO_OPTION.search(str(error))
        if not found:
            raise
        raise InputError(
            f"planner.tables.{table_of_name(found['table'])}: none of its compute_kernels can be used with its "
            f"sharding_types on {found['device']}; leave one of the two out"
        ) from error


def _checked(plan: ShardingPlan) -> ShardingPlan:
    for name, table in table_plans(plan).items():
        for columns in {shard.shard_sizes[1] for shard in shards_of(table)}:
            if columns % 4:
                raise InputError(
                    f"table '{name}' has shards of {columns} columns, and FBGEMM's kernels need a multiple of 4; "
                    "change model.embedding_dim or its features' dimension, or shard it data_parallel"
                )
    return plan


def _explain(error: PlannerError, model: nn.Module, data: DataConfig, config: PlannerConfig, world_size: int) -> str:
    if error.error_type not in (PlannerErrorType.INSUFFICIENT_STORAGE, PlannerErrorType.PARTITION):
        return f"the tables cannot be placed: {' '.join(str(error).split())[:300]}; allow more planner.sharding_types"
    tables, batch = _memory_needed(model, data, config, world_size)
    limits = ", ".join(
        f"planner.{key} is {getattr(config, key) or 'unset'}" for key in ("memory_gib", "host_memory_gib", "reserve")
    )
    if batch > tables:
        return (
            f"data.global_batch_size is {data.global_batch_size}; its ids and embeddings, {batch / GIB:.3g} GiB, do "
            f"not fit the memory of the ranks, beside {tables / GIB:.3g} GiB of tables: {limits}; use a smaller "
            "batch or more ranks, or give more memory"
        )
    return (
        f"the tables, {tables / GIB:.3g} GiB without their optimizer's state and averages, do not fit the memory of "
        f"the ranks: {limits}; give more memory, use more ranks, or allow more planner.sharding_types"
    )


def _memory_needed(model: nn.Module, data: DataConfig, config: PlannerConfig, world_size: int) -> tuple[float, float]:
    """Returns the bytes that the tables, and that a batch's ids and embeddings, take on all ranks at the least."""
    shapes, width = table_shapes(model), value_bytes(model)
    tables = batch = 0.0
    for table, features in data.features_of_tables().items():
        types = set(_types_for(table, config))
        tables += table_bytes(shapes[table], width) * (world_size if types == {"data_parallel"} else 1)
        pooled = not data.holds_sequences(table)
        # Every rank holds a partial sum of every pooled embedding.
        copies = world_size if pooled and types <= set(REDUCING) else 1
        for hotness in (data.sparse[feature].hotness for feature in features):
            embeddings = min(1, hotness) if pooled else hotness
            batch += data.global_batch_size * (8 * hotness + 4 * embeddings * shapes[table][1] * copies)
    return tables, batch
