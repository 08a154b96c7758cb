"""The tables to plan, and the choices that the configuration leaves for each."""

from torch import nn

from torchx_recsys.planner.plan import Problem
from torchx_recsys.planner.shard_memory import FLOAT, STATE_BYTES
from torchx_recsys.planner.tables import KERNELS, KINDS, LANES, OF_COLUMNS, SHARDING_TYPES, Table, Zipf, has_options
from trainer.config.data import DataConfig
from trainer.config.optimizer import OptimizerConfig
from trainer.config.plan import PlannerConfig, TablePlan
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.models.embeddings import table_shapes, value_bytes
from trainer.optim.table_kernels import has_plain_update
from trainer.optim.table_optimizers import TABLE_OPTIMIZERS

# A narrower lookup takes as long as one of 32 columns, so narrower shards only add lookups.
LEAST_COLUMNS = 32


def tables_to_plan(model: nn.Module, config: Config, planner: PlannerConfig) -> list[Table]:
    """Returns the tables of an unsharded model, sorted by name.

    Args:
        model: The model.
        config: The configuration.
        planner: The planner's section, without the sharding types that tables cannot have.
    """
    shapes, width = table_shapes(model), value_bytes(model)
    return [_table(name, shapes[name], width, config, planner) for name in sorted(shapes)]


def _table(name: str, shape: tuple[int, int], width: int, config: Config, planner: PlannerConfig) -> Table:
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
        kinds=kinds_to_choose(name, config, planner),
        kernels=_kernels(name, config.optimizer, planner, name in data.managed_tables),
        min_columns=planner.min_columns or LEAST_COLUMNS,
        skew=_skew(name, data),
        weight_bytes=FLOAT if data.has_id_weights else 0,
        has_plain_update=has_plain_update(config.optimizer.of_table(name), config.model.table_precision),
    )


def _skew(table: str, data: DataConfig) -> list[Zipf]:
    """Returns the distributions of a table's ids by feature; none if all rows are equally popular."""
    features = [data.sparse[name] for name in data.features_of_tables()[table]]
    found = [Zipf(feature.zipf, min(feature.distinct or feature.rows, feature.rows)) for feature in features]
    return found if any(zipf.exponent or zipf.ids < features[0].rows for zipf in found) else []


def kinds_to_choose(table: str, config: Config, planner: PlannerConfig) -> list[str]:
    """Returns the sharding types that a table may have, without column types if these would change the losses.

    Args:
        table: The table.
        config: The configuration, which may name sharding types.
        planner: The planner's section, without the sharding types that tables cannot have.
    """
    kinds = kinds_of(table, planner)
    own = config.planner.tables.get(table, TablePlan()).sharding_types or config.planner.sharding_types
    # A column shard has means and norms of its own for each row, so losses would depend on the plan and on the ranks.
    whole = [kind for kind in kinds if KINDS.index(kind) not in OF_COLUMNS]
    return (
        whole if TABLE_OPTIMIZERS[config.optimizer.of_table(table).name].joins_columns and whole and not own else kinds
    )


def kinds_of(table: str, planner: PlannerConfig) -> list[str]:
    """Returns the sharding types that a table may have, in the order of SHARDING_TYPES."""
    if planner.mode == "data_parallel":
        return ["data_parallel"]
    chosen = planner.tables.get(table, TablePlan()).sharding_types or planner.sharding_types or list(SHARDING_TYPES)
    return [kind for kind in SHARDING_TYPES if kind in chosen]


def _kernels(table: str, optimizer: OptimizerConfig, planner: PlannerConfig, is_managed: bool) -> list[str]:
    """Returns the kernels that a table may have; empty for all."""
    if kernels := planner.tables.get(table, TablePlan()).compute_kernels:
        return kernels
    # Averages and managed ids need all rows in one place.
    return [kernel for kernel in KERNELS if kernel != "fused_uvm_caching"] if optimizer.ema.tables or is_managed else []


def check_options(problem: Problem) -> None:
    """Refuses tables that cannot be sharded as allowed.

    Raises:
        InputError: The message names the table and what to do.
    """
    for table in problem.tables:
        if has_options(table, problem.topology):
            continue
        if table.columns % LANES:
            raise odd_columns(table.name, table.columns)
        raise no_option(table.name, problem.cluster.device_type)


def odd_columns(table: str, columns: int) -> InputError:
    """Returns the error for a table with shards that FBGEMM's kernels cannot take."""
    return InputError(
        f"table '{table}' has shards of {plural(columns, 'column')}, and FBGEMM's kernels need a multiple of {LANES}; "
        "change model.embedding_dim or its features' dimension, or shard it data_parallel"
    )


def no_option(table: str, device: str) -> InputError:
    """Returns the error for a table whose kernels and sharding types exclude each other."""
    return InputError(
        f"planner.tables.{table}: none of its compute_kernels can be used with its sharding_types on {device}; leave "
        "one of the two out"
    )
