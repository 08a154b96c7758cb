"""plan.json: a sharding plan as a readable file that a job can load."""

import json
from typing import Annotated, Any

import pydantic
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from trainer.config.section import explain
from trainer.core.errors import InputError
from trainer.core.storage import named, read_text
from trainer.models.embeddings import name_in_model, table_of_name


class ShardInFile(pydantic.BaseModel):
    """One shard of a table in plan.json."""

    offsets: list[int]
    sizes: list[int]
    placement: Annotated[str, pydantic.Field(pattern=r"^rank:\d+/\w+(:\d+)?$")]


class TableInFile(pydantic.BaseModel):
    """One table in plan.json; one that every rank holds whole has no shards."""

    sharding_type: str
    compute_kernel: str
    ranks: list[int] | None
    shards: list[ShardInFile]


class PlanFile(pydantic.BaseModel):
    """The content of plan.json."""

    world_size: int
    modules: dict[str, dict[str, TableInFile]]


def table_plans(plan: ShardingPlan) -> dict[str, ParameterSharding]:
    """Returns the placement of every table by its name."""
    return {
        table_of_name(name): sharding
        for module in plan.plan.values()
        if isinstance(module, EmbeddingModuleShardingPlan)
        for name, sharding in module.items()
    }


def shards_of(table: ParameterSharding) -> list[ShardMetadata]:
    """Returns the shards of a table; none if every rank holds it whole."""
    return table.sharding_spec.shards if table.sharding_spec else []  # pyrefly: ignore[missing-attribute]


def plan_to_json(plan: ShardingPlan, world_size: int) -> dict[str, Any]:
    """Returns the content of plan.json."""
    # TorchRec's ShardingPlan._serialize() has no inverse.
    return {
        "version": 1,
        "world_size": world_size,
        "modules": {
            path: {table_of_name(name): _table_to_json(sharding) for name, sharding in module.items()}
            for path, module in plan.plan.items()
            if isinstance(module, EmbeddingModuleShardingPlan)
        },
    }


def _table_to_json(table: ParameterSharding) -> dict[str, Any]:
    return {
        "sharding_type": table.sharding_type,
        "compute_kernel": table.compute_kernel,
        "ranks": table.ranks,
        "shards": [
            {"offsets": shard.shard_offsets, "sizes": shard.shard_sizes, "placement": str(shard.placement)}
            for shard in shards_of(table)
        ],
    }


def load_plan(url: str, shapes: dict[str, tuple[int, int]], world_size: int) -> ShardingPlan:
    """Reads a plan.json; its ranks and kernels are used as they are.

    Args:
        url: URL of the file.
        shapes: Rows and columns of every table of the model.
        world_size: Ranks of this job.

    Raises:
        InputError: The file is no plan, or one for other tables or another number of ranks.
    """
    with named("planner.plan", url):
        text = read_text(url)
    try:
        content = PlanFile.model_validate(json.loads(text)).model_dump()
    except json.JSONDecodeError as error:
        raise InputError(f"planner.plan is '{url}', which is not JSON: {error}") from error
    except pydantic.ValidationError as error:
        raise InputError(
            f"planner.plan is '{url}', which cannot be read as a plan: {explain(error, PlanFile)}"
        ) from error
    plan = plan_from_json(content)
    if content["world_size"] != world_size:
        raise InputError(
            f"planner.plan is '{url}', a plan for {content['world_size']} ranks; this job has {world_size}"
        )
    _check_shapes(url, plan, shapes)
    return plan


def plan_from_json(content: dict[str, Any]) -> ShardingPlan:
    """Returns the plan in the content of a plan.json."""
    return ShardingPlan(
        plan={
            path: EmbeddingModuleShardingPlan(
                {name_in_model(name): _table_from_json(table) for name, table in module.items()}
            )
            for path, module in content["modules"].items()
        }
    )


def _table_from_json(table: dict[str, Any]) -> ParameterSharding:
    shards = [ShardMetadata(shard["offsets"], shard["sizes"], shard["placement"]) for shard in table["shards"]]
    spec = EnumerableShardingSpec(shards) if shards else None
    return ParameterSharding(table["sharding_type"], table["compute_kernel"], table["ranks"], spec)


def _check_shapes(url: str, plan: ShardingPlan, shapes: dict[str, tuple[int, int]]) -> None:
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


def replicated_tables(plan: ShardingPlan) -> list[str]:
    """Returns the tables that every rank holds whole."""
    return [name for name, table in table_plans(plan).items() if table.sharding_type == "data_parallel"]
