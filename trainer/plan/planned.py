"""A plan for a cluster that need not be there, with all that is to be told of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn
from torchrec.distributed.types import ShardingPlan

from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.embeddings import table_of_weight, table_shapes
from trainer.plan.allowed_types import with_allowed_types
from trainer.plan.cluster import Cluster
from trainer.plan.plan_file import load_plan, shards_of, table_plans
from trainer.plan.ranks import ranks_to_plan_for
from trainer.plan.search.bound import allowed_under, lower_bound, relax
from trainer.plan.search.options import CACHED, KERNELS, KINDS
from trainer.plan.search.placement import Placement
from trainer.plan.search.problem import Ranks, Table
from trainer.plan.search.rated import Rated, rate
from trainer.plan.search.solve import TRIES, NothingFits, Solution, solve
from trainer.plan.sharding_plan import PlannedTable, planned_table, to_sharding_plan
from trainer.plan.tables import check_options, tables_to_plan

MOST_TIMES = 2**20  # the memory that there is, after which no memory helps
BISECTIONS = 30


@dataclass(frozen=True)
class Shortage:
    """Tables that do not fit.

    Attributes:
        times: How many times the memory of every rank they need at least; 1 if it is only that no place was found.
    """

    times: float


@dataclass(frozen=True)
class Planned:
    """A plan for a cluster.

    Attributes:
        config: The configuration.
        cluster: The cluster.
        tables: The tables.
        ranks: The ranks.
        dense_weights: Weights of the model that no table holds.
        solution: The placement and the bound; a shortage of memory where there is none.
    """

    config: Config
    cluster: Cluster
    tables: Sequence[Table]
    ranks: Ranks
    dense_weights: int
    solution: Solution | Shortage

    @property
    def found(self) -> Solution:
        """The placement and the bound, where the tables fit."""
        assert isinstance(self.solution, Solution)
        return self.solution

    @property
    def fits(self) -> bool:
        """Whether the tables fit."""
        return isinstance(self.solution, Solution)

    @property
    def placed(self) -> list[PlannedTable]:
        """The placement of each table."""
        return [planned_table(self.found, number, table) for number, table in enumerate(self.tables)]

    def sharding_plan(self, model: nn.Module) -> ShardingPlan:
        """Returns the plan as a job takes it."""
        return to_sharding_plan(self.found, self.tables, model)


def plan_on(model: nn.Module, config: Config, cluster: Cluster, tries: int = TRIES) -> Planned:
    """Plans for a cluster, or takes the plan that planner.plan names.

    Args:
        model: The unsharded model.
        config: The configuration; its planner.hardware is replaced by the cluster's.
        cluster: The cluster.
        tries: How often the search may pack tables anew; fewer for a quick answer.

    Raises:
        InputError: The tables cannot be sharded as allowed, or the plan does not belong to them and to the cluster.
    """
    check_batch(config, cluster)
    config = config.model_copy(update={"planner": config.planner.model_copy(update={"hardware": cluster.name})})
    planner = with_allowed_types(config)
    shape = cluster.ranks, cluster.per_host, cluster.device_type
    ranks = ranks_to_plan_for(config.data, planner, config.comms, *shape)
    tables = tables_to_plan(model, config, planner)
    check_options(tables, ranks)
    problem = config, cluster, tables, ranks, _dense_weights(model)
    rated, memory = rate(tables, ranks), np.array([ranks.gpu_bytes, ranks.host_bytes], dtype=float)
    if config.planner.plan:
        plan = load_plan(config.planner.plan, table_shapes(model), *shape)
        solution = _rated(config.planner.plan, plan, tables, Placement(rated, ranks, memory, np.zeros(2)))
        return Planned(*problem, solution)
    try:
        return Planned(*problem, solve(tables, ranks, planner.slower_for_memory, tries))
    except NothingFits as error:
        times = _times_needed(rated, ranks, memory) if error.is_proven else 1.0
        return Planned(*problem, Shortage(times))


def _dense_weights(model: nn.Module) -> int:
    return sum(weight.numel() for name, weight in model.named_parameters() if table_of_weight(name) is None)


def check_batch(config: Config, cluster: Cluster) -> None:
    """Refuses ranks that cannot share the batch.

    Raises:
        InputError: They do not divide it.
    """
    batch, ranks = config.data.global_batch_size, cluster.ranks
    if batch % ranks:
        raise InputError(
            f"{cluster} has {ranks} ranks, which do not divide data.global_batch_size, {batch}; use another number of "
            f"hosts, or a multiple of {ranks}, such as {max(1, round(batch / ranks)) * ranks}"
        )


def _times_needed(rated: Rated, ranks: Ranks, memory: np.ndarray) -> float:
    """Returns how many times the memory of every rank the tables need at least."""
    low, high = 1.0, 2.0
    while not _may_fit(rated, ranks, memory * high):
        low, high = high, 2 * high
        if high > MOST_TIMES:
            return np.inf
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _may_fit(rated, ranks, memory * middle) else (middle, high)
    return high


def _may_fit(rated: Rated, ranks: Ranks, memory: np.ndarray) -> bool:
    allowed = allowed_under(rated, np.inf, memory)
    return bool(np.isfinite(relax(rated, allowed, memory * ranks.number).cost))


def _rated(url: str, plan: ShardingPlan, tables: Sequence[Table], placement: Placement) -> Solution:
    """Returns a plan that was made elsewhere with the costs of this planner, and the bound beside it."""
    shardings = table_plans(plan)
    for number, table in enumerate(tables):
        sharding = shardings[table.name]
        shards = shards_of(sharding)
        columns = shards[0].shard_sizes[1] if shards else table.columns
        cached = (sharding.cache_params.load_factor or 0.0) if sharding.cache_params else 0.0
        wanted = KINDS.index(sharding.sharding_type), KERNELS.index(sharding.compute_kernel), columns, cached
        option = _option(placement.rated, number, wanted)
        where = np.array(sharding.ranks)
        if option is None or len(np.unique(where)) < len(where):
            raise InputError(
                f"planner.plan is '{url}', where table '{table.name}' is {sharding.sharding_type} "
                f"{sharding.compute_kernel} in shards of {columns} columns on ranks {sharding.ranks}, which the "
                "planner would not choose and cannot rate; leave planner.plan out to plan anew"
            )
        placement.put(number, option, where)
    bound = lower_bound(placement.rated, placement.memory_limit, placement.ranks.number)
    return Solution(placement, bound)


def _option(rated: Rated, table: int, wanted: tuple[int, int, int, float]) -> int | None:
    options = rated.options
    for option in range(*rated.of_table(table).indices(len(options))):
        kind, kernel, columns, cached = wanted
        same = (options.kind[option], options.kernel[option], options.columns[option]) == (kind, kernel, columns)
        if same and (kernel != CACHED or np.isclose(options.cached[option], cached)):
            return option
    return None
