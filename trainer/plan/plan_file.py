"""Reads and writes plan.json: a sharding plan as a readable file that a job can load.

Version 2 holds, for each table, the few values that determine its shards. Version 1 spells out every shard. It is still
written for plans with uneven shards, which are only made by hand.
"""

import json
from typing import Annotated, Any

import pydantic
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ModuleShardingPlan, ParameterSharding, ShardingPlan

from torchx_recsys.planner.tables import PlannedTable, ranges
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.section import explain
from trainer.core.storage import named, read_text
from trainer.models.embeddings import name_in_model, table_of_name
from trainer.plan.sharding_plan import even_table, parameter_sharding, shards_of, table_plans

Shapes = dict[str, tuple[int, int]]


class ShardInFile(pydantic.BaseModel):
    """A shard of a table in plan.json, version 1."""

    offsets: list[int]
    sizes: list[int]
    placement: Annotated[str, pydantic.Field(pattern=r"^rank:\d+/\w+(:\d+)?$")]


class SpelledTable(pydantic.BaseModel):
    """A table in plan.json, version 1; a replicated table has no shards."""

    sharding_type: str
    compute_kernel: str
    ranks: list[int] | None
    shards: list[ShardInFile]


class SpelledPlan(pydantic.BaseModel):
    """The content of plan.json, version 1."""

    world_size: int
    modules: dict[str, dict[str, SpelledTable]]


class EvenTable(pydantic.BaseModel):
    """A table in plan.json, version 2; `0-3,8` stands for the ranks 0 to 3 and 8."""

    sharding_type: str
    compute_kernel: str
    rows: pydantic.PositiveInt
    columns: pydantic.PositiveInt
    shard_columns: pydantic.PositiveInt
    ranks: Annotated[str, pydantic.Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")]
    cache_load_factor: float | None = None


class EvenPlan(pydantic.BaseModel):
    """The content of plan.json, version 2."""

    world_size: int
    modules: dict[str, dict[str, EvenTable]]


def plan_to_json(plan: ShardingPlan, shapes: Shapes, world_size: int) -> dict[str, Any]:
    """Returns the content of plan.json.

    Args:
        plan: The plan.
        shapes: Rows and columns of every table.
        world_size: Number of ranks of the plan.
    """
    # Not TorchRec's ShardingPlan._serialize(), which has no inverse.
    even = all(_is_even(sharding, shapes[table]) for table, sharding in table_plans(plan).items())
    return {
        "version": 2 if even else 1,
        "world_size": world_size,
        "modules": {
            path: {
                (table := table_of_name(name)): _even(sharding, shapes[table]) if even else _spelled(sharding)
                for name, sharding in module.items()
            }
            for path, module in plan.plan.items()
            if isinstance(module, EmbeddingModuleShardingPlan)
        },
    }


def _is_even(table: ParameterSharding, shape: tuple[int, int]) -> bool:
    shards = [(shard.shard_offsets, shard.shard_sizes) for shard in shards_of(table)]
    return bool(table.ranks) and (not shards or shards == even_table(table, shape).blocks())


def _even(table: ParameterSharding, shape: tuple[int, int]) -> dict[str, Any]:
    planned = even_table(table, shape)
    return {
        "sharding_type": planned.kind,
        "compute_kernel": planned.kernel,
        "rows": planned.rows,
        "columns": planned.columns,
        "shard_columns": planned.shard_columns,
        "ranks": ",".join(ranges(planned.ranks)),
        **({"cache_load_factor": planned.cached} if planned.cached else {}),
    }


def _spelled(table: ParameterSharding) -> dict[str, Any]:
    return {
        "sharding_type": table.sharding_type,
        "compute_kernel": table.compute_kernel,
        "ranks": table.ranks,
        "shards": [
            {"offsets": shard.shard_offsets, "sizes": shard.shard_sizes, "placement": str(shard.placement)}
            for shard in shards_of(table)
        ],
    }


def load_plan(url: str, shapes: Shapes, world_size: int, local_world_size: int, device_type: str) -> ShardingPlan:
    """Loads the plan.json that planner.plan names; see `parse_plan`."""
    with named("planner.plan", url):
        text = read_text(url)
    return parse_plan(text, url, shapes, world_size, local_world_size, device_type)


def parse_plan(
    text: str, url: str, shapes: Shapes, world_size: int, local_world_size: int, device_type: str
) -> ShardingPlan:
    """Parses a plan.json; the plan keeps its ranks and kernels.

    Args:
        text: The content of the file.
        url: URL of the file, for messages.
        shapes: Rows and columns of every table of the model.
        world_size: Number of ranks of this job.
        local_world_size: Number of ranks on each node.
        device_type: cpu or cuda.

    Raises:
        InputError: The file is no plan, or a plan for other tables or another number of ranks.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"planner.plan is '{url}', which is not JSON: {error}") from error
    form = EvenPlan if isinstance(content, dict) and content.get("version") == 2 else SpelledPlan
    try:
        found = form.model_validate(content)
    except pydantic.ValidationError as error:
        raise InputError(f"planner.plan is '{url}', which cannot be read as a plan: {explain(error, form)}") from error
    if found.world_size != world_size:
        raise InputError(
            f"planner.plan is '{url}', a plan for {plural(found.world_size, 'rank')}; this job has {world_size}"
        )
    modules: dict[str, ModuleShardingPlan] = {
        path: EmbeddingModuleShardingPlan(
            {
                name_in_model(name): _sharding(url, name, table, local_world_size, device_type)
                for name, table in module.items()
            }
        )
        for path, module in found.modules.items()
    }
    plan = ShardingPlan(modules)
    _check_shapes(url, plan, shapes)
    return plan


def _sharding(
    url: str, name: str, table: EvenTable | SpelledTable, local_world_size: int, device_type: str
) -> ParameterSharding:
    if isinstance(table, SpelledTable):
        shards = [ShardMetadata(shard.offsets, shard.sizes, shard.placement) for shard in table.shards]
        spec = EnumerableShardingSpec(shards) if shards else None
        return ParameterSharding(table.sharding_type, table.compute_kernel, table.ranks, spec)
    planned = PlannedTable(
        rows=table.rows,
        columns=table.columns,
        kind=table.sharding_type,
        kernel=table.compute_kernel,
        shard_columns=table.shard_columns,
        ranks=[rank for part in table.ranks.split(",") for rank in _range(part)],
        cached=table.cache_load_factor,
    )
    if not planned.is_whole:
        raise InputError(
            f"planner.plan is '{url}', where table '{name}' has {plural(len(planned.ranks), 'shard')} of "
            f"{table.shard_columns} columns, which do not make up {table.columns} columns; plan anew"
        )
    return parameter_sharding(planned, device_type, local_world_size)


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _check_shapes(url: str, plan: ShardingPlan, shapes: Shapes) -> None:
    planned = table_plans(plan)
    if planned.keys() != shapes.keys():
        differing = ", ".join(sorted(planned.keys() ^ shapes.keys()))
        raise InputError(f"planner.plan is '{url}', a plan for other tables; they differ in: {differing}")
    for name, table in planned.items():
        ends = (
            [start + size for start, size in zip(shard.shard_offsets, shard.shard_sizes, strict=True)]
            for shard in shards_of(table)
        )
        shape = tuple(max(end) for end in zip(*ends, strict=True))
        if shape not in (shapes[name], ()):  # a replicated table has no shards
            raise InputError(f"planner.plan is '{url}', where table '{name}' is {shape}; the model's is {shapes[name]}")
        if starts := _uneven_rows(table, shapes[name][0]):
            raise InputError(
                f"planner.plan is '{url}', where table '{name}' has shards that begin at its rows {starts}; TorchRec "
                "sends ids to shards of equal numbers of rows only, so make them equal"
            )


def _uneven_rows(table: ParameterSharding, rows: int) -> list[int]:
    """Returns the first rows of a table's shards if the shards have unequal numbers of rows."""
    # Such plans are refused: TorchRec would train without an error, but look up the wrong rows.
    starts = [shard.shard_offsets[0] for shard in shards_of(table) if shard.shard_offsets[1] == 0]
    block = -(-rows // len(starts)) if starts else 0
    return [] if starts == [min(part * block, rows) for part in range(len(starts))] else starts
