"""The tables to plan: the sizes of each, and the sharding types and kernels that it may have."""

from torch import nn
from torchrec.distributed.types import ShardingPlan

from torchx_recsys.planner.plan import Problem
from torchx_recsys.planner.shard_memory import FLOAT, STATE_BYTES
from torchx_recsys.planner.tables import (
    DATA_PARALLEL,
    KERNELS,
    KINDS,
    LANES,
    OF_COLUMNS,
    SHARDING_TYPES,
    Table,
    Zipf,
    has_options,
)
from trainer.config.data import DataConfig
from trainer.config.optimizer import OptimizerConfig
from trainer.config.plan import PlannerConfig, TablePlan
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.models.embeddings import table_shapes, value_bytes
from trainer.optim.table_kernels import has_plain_update
from trainer.optim.table_optimizers import REPLICABLE, TABLE_OPTIMIZERS, is_replicable
from trainer.plan.sharding_plan import shards_of, table_plans

OF_SEQUENCES = ("data_parallel", "table_wise", "row_wise", "column_wise")  # those that TorchRec has
SHOWN = 3  # number of tables that a line names
MAP_BYTES = 36  # of a row in the map of managed ids: its id, last step and count, and its entry in the index of ids
# A lookup of fewer than 32 columns takes as long as a lookup of 32 columns, so narrower shards gain nothing.
LEAST_COLUMNS = 32


def with_allowed_types(config: Config) -> PlannerConfig:
    """Returns the planner's section without the sharding types that a table cannot have.

    Raises:
        InputError: The section names such a type for a table.
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
    """Returns a line on the tables whose optimizer makes the losses depend on column shards; empty without any."""
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
    """Refuses a plan with a sharding type that a table cannot have, or with uneven column shards of sequences.

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
    # TorchRec's collection of sequences relies on equal widths, which TorchRec's planner always makes.
    if len(widths) > 1:
        found = " and ".join(map(str, sorted(widths)))
        raise InputError(
            f"planner.plan is '{config.planner.plan}', which cuts tables of sequences into shards of {found} columns; "
            "make them equal, or plan anew"
        )


def _obstacles(table: str, config: Config) -> dict[str, str]:
    """Returns the sharding types that a table cannot have, each with the reason and advice."""
    settings = config.optimizer.of_table(table)
    replicated = ""
    if (precision := config.model.precision_of(table)) != "fp32":
        replicated = f"{config.model.precision_key(table)} is '{precision}'; use 'fp32'"
    elif settings.name not in REPLICABLE:
        replicated = f"its optimizer is '{settings.name}'; use one of {', '.join(REPLICABLE)}"
    elif not is_replicable(settings):
        replicated = f"its weight_decay is {settings.weight_decay}; use none"
    found = {"data_parallel": f"{replicated}, or another sharding type"} if replicated else {}
    names = config.data.features_of_tables()[table]
    if name := next((name for name in names if name in config.data.sequences), None):
        reason = f"data.sparse.{name}.pooling is 'none'; sequences are sharded by {', '.join(OF_SEQUENCES)} only"
        return found | {kind: f"{reason}, use one of these" for kind in SHARDING_TYPES if kind not in OF_SEQUENCES}
    # TorchRec 1.8 silently sums the bags of such a table instead of averaging them.
    if config.data.sparse[names[0]].pooling == "mean" and not config.data.has_id_weights:
        reason = "its pooling is 'mean', which TorchRec lacks there; use 'sum', or another sharding type"
        found |= {"grid_shard": reason}
    return found


def _types_of(table: str, config: PlannerConfig) -> tuple[str, list[str]]:
    """Returns the sharding types that the configuration sets for a table, and the key that sets them."""
    if config.mode == "data_parallel":
        return "planner.mode", ["data_parallel"]
    if table in config.tables and config.tables[table].sharding_types:
        return f"planner.tables.{table}.sharding_types", config.tables[table].sharding_types
    return "planner.sharding_types", config.sharding_types


def tables_to_plan(model: nn.Module, config: Config, planner: PlannerConfig, on_gpu: bool = False) -> list[Table]:
    """Describes the tables of an unsharded model to the planner, sorted by name.

    Args:
        model: The model.
        config: The configuration.
        planner: The planner's section, without the sharding types that tables cannot have.
        on_gpu: Whether the tables are for GPUs.
    """
    shapes, widths = table_shapes(model), value_bytes(model)
    return [_table(name, shapes[name], widths[name], config, planner, on_gpu) for name in sorted(shapes)]


def _table(
    name: str, shape: tuple[int, int], width: int, config: Config, planner: PlannerConfig, on_gpu: bool
) -> Table:
    data, ema = config.data, config.optimizer.ema
    slots = TABLE_OPTIMIZERS[config.optimizer.of_table(name).name].slots
    aside = width if ema.evaluate else 0
    return Table(
        name=name,
        rows=shape[0],
        columns=shape[1],
        hotness=tuple(data.sparse[feature].hotness for feature in data.features_of_tables()[name]),
        is_pooled=not data.holds_sequences(name),
        value_bytes=width,
        state_per_value=slots.count(2),
        state_per_row=slots.count(1),
        averages_per_value=STATE_BYTES + aside if ema.tables else 0,
        averages_per_row=STATE_BYTES if ema.tables else 0,
        kinds=kinds_to_choose(name, config, planner, on_gpu),
        kernels=_kernels(name, config.optimizer, planner, name in data.managed_tables),
        min_columns=planner.min_columns or LEAST_COLUMNS,
        skew=_skew(name, data),
        weight_bytes=FLOAT if data.has_id_weights else 0,
        has_plain_update=has_plain_update(config.optimizer.of_table(name), config.model.precision_of(name)),
        map_bytes=_map_bytes(name, data),
    )


def _map_bytes(table: str, data: DataConfig) -> int:
    """Returns the bytes for each row of the map of managed ids: of one, or of two if ids are counted before."""
    if not (features := data.managed_tables.get(table)):
        return 0
    return MAP_BYTES * (2 if data.sparse[features[0]].admit_after else 1)


def _skew(table: str, data: DataConfig) -> list[Zipf]:
    """Returns the distribution of a table's ids for each feature; empty if all rows are equally popular."""
    features = [data.sparse[name] for name in data.features_of_tables()[table]]
    found = [Zipf(feature.zipf, min(feature.distinct or feature.rows, feature.rows)) for feature in features]
    return found if any(zipf.exponent or zipf.ids < features[0].rows for zipf in found) else []


def kinds_to_choose(table: str, config: Config, planner: PlannerConfig, on_gpu: bool = False) -> list[str]:
    """Returns the sharding types to choose from for a table; some only if the configuration names them."""
    kinds, left_out = kinds_of(table, planner), set()
    if config.planner.tables.get(table, TablePlan()).sharding_types or config.planner.sharding_types:
        return kinds
    # These optimizers compute a mean or a norm over the columns of a row, and a column shard has only its own columns.
    # Losses would depend on the plan, and with it on the number of ranks.
    if TABLE_OPTIMIZERS[config.optimizer.of_table(table).name].joins_columns:
        left_out |= {KINDS[kind] for kind in OF_COLUMNS}
    # Replicated sequences have not been measured on a GPU.
    if on_gpu and config.data.holds_sequences(table):
        left_out |= {KINDS[DATA_PARALLEL]}
    return [kind for kind in kinds if kind not in left_out] or kinds


def kinds_of(table: str, planner: PlannerConfig) -> list[str]:
    """Returns the sharding types that a table may have, in the order of SHARDING_TYPES."""
    if planner.mode == "data_parallel":
        return ["data_parallel"]
    chosen = planner.tables.get(table, TablePlan()).sharding_types or planner.sharding_types or list(SHARDING_TYPES)
    return [kind for kind in SHARDING_TYPES if kind in chosen]


def _kernels(table: str, optimizer: OptimizerConfig, planner: PlannerConfig, is_managed: bool) -> list[str]:
    """Returns the kernels that a table may have; empty if it may have all."""
    if kernels := planner.tables.get(table, TablePlan()).compute_kernels or planner.compute_kernels:
        return kernels
    # Averages and managed ids need all rows in one place; a cache would hold the newest values of some.
    return [kernel for kernel in KERNELS if kernel != "fused_uvm_caching"] if optimizer.ema.tables or is_managed else []


def check_options(problem: Problem) -> None:
    """Refuses tables without any allowed way to shard them.

    Raises:
        InputError: The message names the table and what to do.
    """
    for table in problem.tables:
        if has_options(table, problem.topology):
            continue
        if table.columns % LANES:
            raise odd_columns(table.name, table.columns)
        raise no_option(table, problem.cluster.device_type)


def odd_columns(table: str, columns: int) -> InputError:
    """Returns the error for a table with shards whose number of columns FBGEMM's kernels cannot take."""
    return InputError(
        f"table '{table}' has shards of {plural(columns, 'column')}, and FBGEMM's kernels need a multiple of {LANES}; "
        "change model.embedding_dim or its features' dimension, or shard it data_parallel"
    )


def no_option(table: Table, device: str) -> InputError:
    """Returns the error for a table whose allowed kernels and sharding types exclude each other."""
    kernels, kinds = ", ".join(table.kernels or KERNELS), ", ".join(table.kinds)
    return InputError(
        f"table '{table.name}' may have the compute kernels {kernels} and the sharding types {kinds}, of which none go "
        f"together on {device}; change planner.compute_kernels or planner.sharding_types, or those of "
        f"planner.tables.{table.name}"
    )
