"""Which rank holds which part of which table: how the plan is made and shown."""

import os
from typing import Any, Literal

import pydantic
import torch
import torch.distributed as dist
from tabulate import tabulate
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.constants import HBM_MEM_BW
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
from torchrec.distributed.types import ModuleSharder, ParameterSharding, ShardingPlan

from trainer.data.schema import DataConfig
from trainer.distributed import Ranks
from trainer.optimizers import REPLICATED
from trainer.plan.hardware import HOSTS, Host
from trainer.plan_file import load_plan, shards_of, table_plans
from trainer.section import Section, nearest

SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)
GIB = 1024**3
GB_PER_SECOND = 1e9 / 1e3  # TorchRec counts bandwidth in bytes per millisecond
BANDWIDTHS = {
    "intra_node_gb_per_second": "intra_host_bw",
    "inter_node_gb_per_second": "inter_host_bw",
    "hbm_gb_per_second": "hbm_mem_bw",
}
UNKNOWN_HARDWARE = {
    "intra_node_gb_per_second": 600.0,
    "inter_node_gb_per_second": 12.5,
    "hbm_gb_per_second": HBM_MEM_BW / GB_PER_SECOND,
}


class TablePlan(Section):
    """What the planner may do with one table; an empty list allows everything."""

    sharding_types: list[str] = []
    """Sharding types to choose from."""
    compute_kernels: list[str] = []
    """Compute kernels to choose from, such as fused or fused_uvm_caching."""


class PlannerConfig(Section):
    """How tables are spread over ranks."""

    mode: Literal["model_parallel", "data_parallel"] = "model_parallel"
    """model_parallel shards the tables as planned, data_parallel replicates every one of them."""
    plan: str | None = None
    """A plan.json to use as it is, ranks and kernels pinned, instead of planning."""
    sharding_types: list[str] = []
    """Sharding types that the planner chooses from for every table. Empty: all."""
    tables: dict[str, TablePlan] = {}
    """Choices for single tables, by table name; they replace the choices for all."""
    min_columns: pydantic.PositiveInt | None = None
    """Least width of a shard where a table is cut by columns. Unset: 128, or the whole of a narrower table."""
    hardware: str | None = None
    """Host to plan for, such as h100 (see docs/resources.md); it decides what is unset below. Unset: this machine."""
    memory_gib: pydantic.PositiveFloat | None = None
    """GPU memory per rank in GiB. Unset: the hardware's, or what the device has."""
    host_memory_gib: pydantic.PositiveFloat | None = None
    """Host memory per rank in GiB. Unset: the hardware's or the machine's, divided by its ranks."""
    reserve: float = pydantic.Field(default=0.15, ge=0, lt=1)
    """Part of the memory that is kept free of tables, for activations, gradients and buffers."""
    intra_node_gb_per_second: pydantic.PositiveFloat | None = None
    """Bandwidth between two ranks of a node, in GB/s. Unset: the hardware's, or 600."""
    inter_node_gb_per_second: pydantic.PositiveFloat | None = None
    """Bandwidth from a rank to other nodes, in GB/s. Unset: the hardware's, or 12.5."""
    hbm_gb_per_second: pydantic.PositiveFloat | None = None
    """Bandwidth of GPU memory, in GB/s. Unset: the hardware's, or TorchRec's 963."""


def make_plan(
    model: nn.Module, sharder: ModuleSharder[Any], data: DataConfig, config: PlannerConfig, ranks: Ranks
) -> ShardingPlan:
    """Plans on the main rank, or loads the plan that the configuration names, and returns it on every rank.

    Raises:
        ValueError: The plan does not fit the memory, or does not belong to these tables and ranks.
    """
    if config.plan:
        return load_plan(config.plan, table_shapes(model), ranks.world_size)
    planner = _planner(data, config, ranks.world_size, ranks.local_world_size, ranks.device.type)
    try:
        return planner.collective_plan(model, [sharder], dist.group.WORLD)
    except PlannerError as error:
        raise ValueError(_explain(error, model, config)) from error


def plan_for(
    model: nn.Module,
    sharder: ModuleSharder[Any],
    data: DataConfig,
    config: PlannerConfig,
    world_size: int,
    local_world_size: int,
    device_type: str,
) -> ShardingPlan:
    """Plans for a number of ranks that need not exist, without a process group.

    Raises:
        ValueError: The plan does not fit the memory.
    """
    try:
        return _planner(data, config, world_size, local_world_size, device_type).plan(model, [sharder])
    except PlannerError as error:
        raise ValueError(_explain(error, model, config)) from error


def _planner(
    data: DataConfig, config: PlannerConfig, world_size: int, local_world_size: int, device_type: str
) -> EmbeddingShardingPlanner:
    return EmbeddingShardingPlanner(
        topology=_topology(config, world_size, local_world_size, device_type),
        batch_size=data.global_batch_size // world_size,
        constraints=_constraints(data, config),
        storage_reservation=FixedPercentageStorageReservation(config.reserve),
        stats=NoopEmbeddingStats(),
        debug=False,
    )


def _topology(config: PlannerConfig, world_size: int, local_world_size: int, device_type: str) -> Topology:
    config = _with_hardware(config, local_world_size)
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // local_world_size
    if config.host_memory_gib:
        host = int(config.host_memory_gib * GIB)
    if device_type == "cpu":
        host = int(host * (1 - config.reserve))  # TorchRec's own reservation only cuts GPU memory
    return TopologyFactory.create_topology(
        TrainerConfig(world_size=world_size, local_world_size=local_world_size),
        HardwareConfig(
            hbm_cap_bytes=_gpu_memory_bytes(config, device_type),
            ddr_cap_bytes=host,
            **{name: getattr(config, key) * GB_PER_SECOND for key, name in BANDWIDTHS.items()},
        ),
        KernelConfig(compute_device=device_type, use_hardware_based_bandwidth=True),
    )


def _with_hardware(config: PlannerConfig, local_world_size: int) -> PlannerConfig:
    """Returns the configuration with the figures of its hardware where it leaves them open, then TorchRec's own."""
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


def check_planner(data: DataConfig, config: PlannerConfig, sparse_optimizer: str) -> None:
    """Refuses sharding types, kernels and tables that do not exist, and optimizers that cannot follow.

    Raises:
        ValueError: The message names the key, the value and what is allowed.
    """
    if config.hardware and config.hardware not in HOSTS:
        raise ValueError(
            f"planner.hardware is '{config.hardware}', which is no known host{nearest(config.hardware, HOSTS)}"
        )
    tables = {data.table_of(name) for name in data.sparse}
    kernels = [kernel.value for kernel in EmbeddingComputeKernel]
    choices = {"planner.sharding_types": config.sharding_types}
    for name, table in config.tables.items():
        if name not in tables:
            raise ValueError(f"planner.tables.{name}: there is no such table{nearest(name, tables)}")
        choices[f"planner.tables.{name}.sharding_types"] = table.sharding_types
        for kernel in set(table.compute_kernels) - set(kernels):
            raise ValueError(f"planner.tables.{name}.compute_kernels holds '{kernel}'{nearest(kernel, kernels)}")
    for key, types in choices.items():
        for kind in set(types) - set(SHARDING_TYPES):
            raise ValueError(f"{key} holds '{kind}', which is no sharding type{nearest(kind, SHARDING_TYPES)}")
        if sparse_optimizer not in REPLICATED and "data_parallel" in types:
            _refuse_replicated(key, sparse_optimizer)
    if config.mode == "data_parallel" and sparse_optimizer not in REPLICATED:
        _refuse_replicated("planner.mode", sparse_optimizer)


def _refuse_replicated(key: str, sparse_optimizer: str) -> None:
    raise ValueError(
        f"{key} asks for data_parallel, where optimizer.sparse.name '{sparse_optimizer}' cannot be used; "
        f"use one of {', '.join(REPLICATED)}"
    )


def _constraints(data: DataConfig, config: PlannerConfig) -> dict[str, ParameterConstraints]:
    features: dict[str, list[str]] = {}
    for name in data.sparse:
        features.setdefault(data.table_of(name), []).append(name)
    return {
        table: ParameterConstraints(
            sharding_types=_types_for(table, config),
            compute_kernels=(config.tables[table].compute_kernels or None) if table in config.tables else None,
            min_partition=config.min_columns,
            pooling_factors=[data.sparse[name].hotness for name in names],
        )
        for table, names in features.items()
    }


def _types_for(table: str, config: PlannerConfig) -> list[str]:
    if config.mode == "data_parallel":
        return ["data_parallel"]
    own = config.tables[table].sharding_types if table in config.tables else []
    return own or config.sharding_types or list(SHARDING_TYPES)


def _explain(error: PlannerError, model: nn.Module, config: PlannerConfig) -> str:
    if error.error_type not in (PlannerErrorType.INSUFFICIENT_STORAGE, PlannerErrorType.PARTITION):
        return f"the tables cannot be placed: {' '.join(str(error).split())[:300]}; allow more planner.sharding_types"
    tables = sum(rows * columns * 4 for rows, columns in table_shapes(model).values())
    limits = (
        f"planner.{key} is {getattr(config, key) or 'unset'}" for key in ("memory_gib", "host_memory_gib", "reserve")
    )
    return (
        f"the tables, {tables / GIB:.3g} GiB without their optimizer's state, do not fit the memory of the ranks: "
        f"{', '.join(limits)}; give more memory, use more ranks, or allow more planner.sharding_types"
    )


def replicated_tables(plan: ShardingPlan) -> list[str]:
    """Returns the tables that every rank holds whole."""
    return [name for name, table in table_plans(plan).items() if table.sharding_type == "data_parallel"]


def render_plan(plan: ShardingPlan, model: nn.Module, world_size: int) -> str:
    """Returns the plan as a table for people: each table's shape, placement and size, then the bytes on each rank."""
    shapes = table_shapes(model)
    on_rank = [0] * world_size
    lines = []
    for name, table in table_plans(plan).items():
        rows, columns = shapes[name]
        for rank, size in _shard_bytes(table, rows * columns * 4, world_size):
            on_rank[rank] += size
        ranks = "all" if len(set(table.ranks or [])) in (0, world_size) else ",".join(map(str, table.ranks or []))
        shards = len(shards_of(table)) or world_size
        mib = rows * columns * 4 / 2**20
        lines.append([name, rows, columns, table.sharding_type, table.compute_kernel, shards, ranks, mib])
    headers = ["table", "rows", "columns", "sharding type", "kernel", "shards", "ranks", "MiB"]
    loads = [[rank, size / 2**20] for rank, size in enumerate(on_rank)]
    return "\n\n".join(
        [
            tabulate(lines, headers, floatfmt=",.2f", intfmt=","),
            tabulate(loads, ["rank", "MiB of tables"], floatfmt=",.2f"),
        ]
    )


def _shard_bytes(table: ParameterSharding, whole_bytes: int, world_size: int) -> list[tuple[int, int]]:
    shards = [(_rank_of(shard), shard.shard_sizes[0] * shard.shard_sizes[1] * 4) for shard in shards_of(table)]
    return shards or [(rank, whole_bytes) for rank in range(world_size)]


def _rank_of(shard: ShardMetadata) -> int:
    return int(str(shard.placement).split("/")[0].removeprefix("rank:"))


def table_shapes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns rows and columns of every table of an unsharded model, by table name."""
    return {
        name.split(".")[-2]: (parameter.shape[0], parameter.shape[1])
        for name, parameter in model.named_parameters()
        if "embedding_bags." in name
    }
