"""A sharding plan as tables: each embedding table's placement, and the bytes on each rank."""

from tabulate import tabulate
from torch import nn
from torchrec.distributed.types import ShardingPlan

from torchx_recsys.planner.tables import ranges
from trainer.models.embeddings import table_shapes, value_bytes
from trainer.plan.memory import table_bytes
from trainer.plan.sharding_plan import shards_of, table_plans


def render_plan(plan: ShardingPlan, model: nn.Module, world_size: int) -> str:
    """Returns two tables to print: shape, placement and size of each embedding table, and the bytes on each rank."""
    shapes, width = table_shapes(model), value_bytes(model)
    on_rank = [0] * world_size
    lines = []
    for name, table in table_plans(plan).items():
        size = table_bytes(shapes[name], width)
        shards = [
            (shard.placement.rank(), table_bytes(shard.shard_sizes, width))  # pyrefly: ignore[missing-attribute]
            for shard in shards_of(table)
        ]
        shards = shards or [(rank, size) for rank in range(world_size)]
        for rank, shard_size in shards:
            on_rank[rank] += shard_size
        ranks = "all" if len(set(table.ranks or [])) in (0, world_size) else ",".join(ranges(table.ranks or []))
        lines.append([name, *shapes[name], table.sharding_type, table.compute_kernel, len(shards), ranks, size / 2**20])
    headers = ["table", "rows", "columns", "sharding type", "kernel", "shards", "ranks", "MiB"]
    loads = [[rank, size / 2**20] for rank, size in enumerate(on_rank)]
    return "\n\n".join(
        [
            tabulate(lines, headers, floatfmt=",.2f", intfmt=","),
            tabulate(loads, ["rank", "MiB of tables"], floatfmt=",.2f"),
        ]
    )
