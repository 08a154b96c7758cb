"""TorchRec's form of a plan, made from the little that decides it: type, kernel, columns of a shard, ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.planner.utils import placement
from torchrec.distributed.types import CacheParams, EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from trainer.models.embeddings import name_in_model, table_of_weight
from trainer.plan.search.options import CACHED, KERNELS, KINDS
from trainer.plan.search.problem import Table
from trainer.plan.search.solve import Solution


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """The placement of a table.

    Attributes:
        rows: Rows of the table.
        columns: Its columns.
        kind: Its sharding type.
        kernel: Its compute kernel.
        shard_columns: Columns of a shard.
        ranks: The rank of each shard: all row shards of the first columns, then those of the next.
        cached: Part of the rows that is cached on the GPU; unset for kernels without a cache.
    """

    rows: int
    columns: int
    kind: str
    kernel: str
    shard_columns: int
    ranks: Sequence[int]
    cached: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the shards make up the table."""
        pieces, left = divmod(self.columns, self.shard_columns)
        return not left and len(self.ranks) % pieces == 0

    def sharding(self, device_type: str, local_world_size: int) -> ParameterSharding:
        """Returns the placement as TorchRec has it, every shard spelled out."""
        spec = None
        if self.kind != "data_parallel":
            shards = [
                ShardMetadata(offset, size, placement(device_type, rank, local_world_size))
                for (offset, size), rank in zip(self.blocks(), self.ranks, strict=True)
            ]
            spec = EnumerableShardingSpec(shards)
        cache = CacheParams(load_factor=self.cached) if self.cached else None
        return ParameterSharding(self.kind, self.kernel, list(self.ranks), spec, cache_params=cache)

    def blocks(self) -> list[tuple[list[int], list[int]]]:
        """Returns offset and size of every shard; the last ones of the rows may be short, or empty."""
        pieces = self.columns // self.shard_columns
        parts = len(self.ranks) // pieces
        block = -(-self.rows // parts)
        starts = [min(part * block, self.rows) for part in range(parts + 1)]
        return [
            ([start, column], [stop - start, self.shard_columns])
            for column in range(0, self.columns, self.shard_columns)
            for start, stop in pairwise(starts)
        ]


def to_sharding_plan(solution: Solution, tables: Sequence[Table], model: nn.Module) -> ShardingPlan:
    """Returns a solution as TorchRec's plan of a model."""
    ranks = solution.placement.ranks
    device_type = "cuda" if ranks.on_gpu else "cpu"
    planned = {
        table.name: planned_table(solution, number, table).sharding(device_type, ranks.per_host)
        for number, table in enumerate(tables)
    }
    modules = {}
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingBagCollection | EmbeddingCollection):
            names = [name for weight, _ in module.named_parameters() if (name := table_of_weight(f"{path}.{weight}"))]
            modules[path] = EmbeddingModuleShardingPlan({name_in_model(name): planned[name] for name in names})
    return ShardingPlan({path: plan for path, plan in modules.items() if plan})


def planned_table(solution: Solution, number: int, table: Table) -> PlannedTable:
    """Returns the placement of a table in a solution."""
    options, option = solution.placement.rated.options, solution.placement.option[number]
    kernel = int(options.kernel[option])
    return PlannedTable(
        rows=table.rows,
        columns=table.columns,
        kind=KINDS[options.kind[option]],
        kernel=KERNELS[kernel],
        shard_columns=int(options.columns[option]),
        ranks=solution.placement.where[number].tolist(),
        cached=float(options.cached[option]) if kernel == CACHED else None,
    )
