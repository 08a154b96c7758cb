"""A sharding plan as tables: each embedding table's placement, and the bytes on each rank."""

from tabulate import tabulate
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from trainer.models.embeddings import table_shapes
from trainer.plan.plan_file import shards_of, table_plans


def render_plan(plan: ShardingPlan, model: nn.Module, world_size: int) -> str:
    """Returns two tables to print: shape, placement and size of each embedding table, and the bytes on each rank."""
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
