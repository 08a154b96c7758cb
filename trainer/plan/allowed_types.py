"""The sharding types that a table's optimizer, precision or pooling rules out."""

from torchrec.distributed.types import ShardingPlan

from torchx_recsys.planner.tables import SHARDING_TYPES
from trainer.config.plan import PlannerConfig, TablePlan
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.optim.table_optimizers import REPLICABLE, TABLE_OPTIMIZERS, is_replicable
from trainer.plan.sharding_plan import shards_of, table_plans

# TorchRec's data_parallel fails for sequences on a CPU, and TorchRec lacks the other types.
OF_SEQUENCES = ("table_wise", "row_wise", "column_wise")
SHOWN = 3  # tables in a line


def with_allowed_types(config: Config) -> PlannerConfig:
    """Returns the planner's section without sharding types that a table cannot have.

    Raises:
        InputError: The section names such a type.
    """
    planner, tables = config.planner, dict(config.planner.tables)
    for table in config.data.features_of_tables():
        obstacles = _obstacles(table, config)
        if not obstacles:
            continue
        key, types = _types_of(table, planner)
        for kind in obstacles.keys() & set(types):
            raise InputError(f"{key} has {kind}, which table '{table}' cannot have: {obstacles[kind]}")
        others = types or [kind for kind in SHARDING_TYPES if kind not in obstacles]
        tables[table] = tables.get(table, TablePlan()).model_copy(update={"sharding_types": others})
    return planner.model_copy(update={"tables": tables})


def column_shards_in_words(plan: ShardingPlan, config: Config) -> str:
    """Returns a line on the tables whose optimizer computes otherwise in other column shards; empty without any."""
    found = [
        table
        for table, sharding in table_plans(plan).items()
        if TABLE_OPTIMIZERS[config.optimizer.of_table(table).name].joins_columns
        and len({shard.shard_offsets[1] for shard in shards_of(sharding)}) > 1
    ]
    if not found:
        return ""
    more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
    names = ", ".join(sorted({config.optimizer.of_table(table).name for table in found}))
    return (
        f"cut by columns: {', '.join(found[:SHOWN])}{more}; {names} joins the columns of each shard, so that a plan "
        "with other column shards, as for another number of ranks, trains other weights; planner.sharding_types chooses"
    )


def check_types(plan: ShardingPlan, config: Config) -> None:
    """Refuses a plan with a sharding type that a table cannot have, or sequences in column shards of uneven widths.

    Raises:
        InputError: The message names the table and what to do.
    """
    for table, sharding in table_plans(plan).items():
        obstacles = _obstacles(table, config)
        if sharding.sharding_type in obstacles:
            raise InputError(
                f"planner.plan is '{config.planner.plan}', which has {sharding.sharding_type} for table '{table}', "
                f"where it cannot be: {obstacles[sharding.sharding_type]}"
            )
    _check_widths(plan, config)


def _check_widths(plan: ShardingPlan, config: Config) -> None:
    widths = {
        shard.shard_sizes[1]
        for table, sharding in table_plans(plan).items()
        if sharding.sharding_type == "column_wise" and config.data.holds_sequences(table)
        for shard in shards_of(sharding)
    }
    # TorchRec's planner makes widths equal, and its collection of sequences relies on this.
    if len(widths) > 1:
        found = " and ".join(map(str, sorted(widths)))
        raise InputError(
            f"planner.plan is '{config.planner.plan}', which cuts tables of sequences into shards of {found} columns; "
            "make them equal, or plan anew"
        )


def _obstacles(table: str, config: Config) -> dict[str, str]:
    """Returns the sharding types that a table cannot have, each with the reason and what to do."""
    if config.data.holds_sequences(table):
        reason = f"its pooling is 'none'; TorchRec shards sequences by {', '.join(OF_SEQUENCES)} only, use one of these"
        return {kind: reason for kind in SHARDING_TYPES if kind not in OF_SEQUENCES}
    settings = config.optimizer.of_table(table)
    pooling = config.data.sparse[config.data.features_of_tables()[table][0]].pooling
    divides = pooling == "mean" and not config.data.has_id_weights
    replicated = ""
    if config.model.table_precision != "fp32":
        replicated = f"model.table_precision is '{config.model.table_precision}'; use 'fp32'"
    elif settings.name not in REPLICABLE:
        replicated = f"its optimizer is '{settings.name}'; use one of {', '.join(REPLICABLE)}"
    elif not is_replicable(settings):
        replicated = f"its weight_decay is {settings.weight_decay}; use none"
    # TorchRec 1.8 silently sums the bags of a table sharded this way.
    meaning = "its pooling is 'mean', which TorchRec lacks there; use 'sum'" if divides else ""
    found = {"data_parallel": replicated, "grid_shard": meaning}
    return {kind: f"{reason}, or another sharding type" for kind, reason in found.items() if reason}


def _types_of(table: str, config: PlannerConfig) -> tuple[str, list[str]]:
    """Returns the key that sets a table's sharding types, and the types."""
    if config.mode == "data_parallel":
        return "planner.mode", ["data_parallel"]
    if table in config.tables and config.tables[table].sharding_types:
        return f"planner.tables.{table}.sharding_types", config.tables[table].sharding_types
    return "planner.sharding_types", config.sharding_types
