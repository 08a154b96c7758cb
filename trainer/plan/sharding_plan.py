"""TorchRec's sharding plans: makes them from the planner's solution, reads them back, and prints them as tables."""

import math
from collections.abc import Sequence

import numpy as np
from tabulate import tabulate
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.planner.utils import placement
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from torchx_recsys.planner.plan import Problem
from torchx_recsys.planner.rank_memory import RankMemory, Shards, join_shards, shards_of_table
from torchx_recsys.planner.reasons import WITHOUT_TABLES
from torchx_recsys.planner.search import Solution, planned_table
from torchx_recsys.planner.step_time import StepTime, step_time
from torchx_recsys.planner.tables import IN_HOST_MEMORY, PlannedTable, Table, ranges
from trainer.models.embeddings import name_in_model, table_of_name, table_of_weight, table_shapes, value_bytes


def to_sharding_plan(solution: Solution, tables: Sequence[Table], model: nn.Module) -> ShardingPlan:
    """Converts the planner's solution to TorchRec's plan of a model."""
    topology = solution.placement.topology
    device_type = "cuda" if topology.on_gpu else "cpu"
    planned = {
        table.name: parameter_sharding(planned_table(solution, number, table), device_type, topology.per_host)
        for number, table in enumerate(tables)
    }
    modules = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            names = [name for weight, _ in module.named_parameters() if (name := table_of_weight(f"{path}.{weight}"))]
            modules[path] = EmbeddingModuleShardingPlan({name_in_model(name): planned[name] for name in names})
    return ShardingPlan({path: plan for path, plan in modules.items() if plan})


def parameter_sharding(table: PlannedTable, device_type: str, local_world_size: int) -> ParameterSharding:
    """Returns the placement of a table with every shard spelled out."""
    spec = None
    if table.kind != "data_parallel":
        shards = [
            ShardMetadata(offset, size, placement(device_type, rank, local_world_size))
            for (offset, size), rank in zip(table.blocks(), table.ranks, strict=True)
        ]
        spec = EnumerableShardingSpec(shards)
    cache = CacheParams(load_factor=table.cached) if table.cached else None
    return ParameterSharding(table.kind, table.kernel, list(table.ranks), spec, cache_params=cache)


def table_plans(plan: ShardingPlan) -> dict[str, ParameterSharding]:
    """Returns the placement of every table by its name."""
    return {
        table_of_name(name): sharding
        for module in plan.plan.values()
        if isinstance(module, EmbeddingModuleShardingPlan)
        for name, sharding in module.items()
    }


def shards_of(table: ParameterSharding) -> list[ShardMetadata]:
    """Returns the shards of a table; empty if every rank holds the whole table."""
    return table.sharding_spec.shards if table.sharding_spec else []  # pyrefly: ignore[missing-attribute]


def replicated_tables(plan: ShardingPlan) -> list[str]:
    """Returns the replicated tables: every rank holds the whole table."""
    return [name for name, table in table_plans(plan).items() if table.sharding_type == "data_parallel"]


def even_table(table: ParameterSharding, shape: tuple[int, int]) -> PlannedTable:
    """Returns the placement of a table with even shards."""
    shards = shards_of(table)
    return PlannedTable(
        rows=shape[0],
        columns=shape[1],
        kind=table.sharding_type,
        kernel=table.compute_kernel,
        shard_columns=shards[0].shard_sizes[1] if shards else shape[1],
        ranks=table.ranks or [],
        cached=table.cache_params.load_factor if table.cache_params else None,
    )


def time_of_plan(plan: ShardingPlan, problem: Problem) -> StepTime:
    """Returns the estimated time of a step under a plan, whether it was planned or loaded."""
    plans = table_plans(plan)
    planned = [even_table(plans[table.name], (table.rows, table.columns)) for table in problem.tables]
    return step_time(planned, problem.tables, problem.topology, problem.dense.work)


def memory_of_plan(plan: ShardingPlan, problem: Problem) -> RankMemory:
    """Returns the estimated memory of each rank under a plan, whether it was planned or loaded."""
    return problem.memory_of(shards_in_plan(plan, problem.tables, problem.topology.ranks))


def shards_in_plan(plan: ShardingPlan, tables: Sequence[Table], world_size: int) -> Shards:
    """Converts the shards of a plan, even or not, to the planner's form."""
    placed, found = table_plans(plan), []
    for number, table in enumerate(tables):
        one = placed[table.name]
        cached = one.cache_params.load_factor if one.cache_params else None
        sizes = [shard.shard_sizes for shard in shards_of(one)] or [[table.rows, table.columns]] * world_size
        where = [shard.placement.rank() for shard in shards_of(one)] or [*range(world_size)]  # pyrefly: ignore
        rows, columns = np.array(sizes).T
        found.append(shards_of_table(number, one.sharding_type, one.compute_kernel, columns, cached, rows, where))
    return join_shards(found)


def render_plan(plan: ShardingPlan, model: nn.Module, world_size: int) -> str:
    """Returns a plan as two tables to print: each embedding table with its placement, and the bytes on each rank."""
    if not table_plans(plan):
        return WITHOUT_TABLES
    shapes, widths = table_shapes(model), value_bytes(model)
    on_rank = [0] * world_size
    lines = []
    for name, table in table_plans(plan).items():
        size = table_bytes(shapes[name], widths[name])
        shards = [
            (shard.placement.rank(), table_bytes(shard.shard_sizes, widths[name]))  # pyrefly: ignore[missing-attribute]
            for shard in shards_of(table)
        ]
        shards = shards or [(rank, size) for rank in range(world_size)]
        for rank, shard_size in shards:
            on_rank[rank] += shard_size
        ranks = "all" if len(set(table.ranks or [])) in (0, world_size) else ",".join(ranges(table.ranks or []))
        lines.append([name, *shapes[name], table.sharding_type, table.compute_kernel, len(shards), ranks, size / 2**20])
    headers = ["table", "rows", "columns", "sharding type", "kernel", "shards", "ranks", "MiB"]
    loads = [[rank, size / 2**20] for rank, size in enumerate(on_rank)]
    on_host = [name for name, table in table_plans(plan).items() if table.compute_kernel in IN_HOST_MEMORY]
    parts = [
        tabulate(lines, headers, floatfmt=",.2f", intfmt=","),
        tabulate(loads, ["rank", "MiB of tables"], floatfmt=",.2f"),
        f"in host memory, not on GPUs (UVM): {', '.join(on_host)}" if on_host else "",
    ]
    return "\n\n".join(filter(None, parts))


def table_bytes(shape: Sequence[int], value_bytes: int) -> int:
    """Returns the size of a table or shard in bytes, without optimizer state."""
    return math.prod(shape) * value_bytes
