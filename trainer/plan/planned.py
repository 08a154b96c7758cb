"""A plan for a cluster that need not be there, with all that is to be told of it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn
from torchrec.distributed.types import ShardingPlan

from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.embeddings import table_shapes
from trainer.plan.cluster import Cluster
from trainer.plan.dense_work import DenseWork
from trainer.plan.fitting import Problem, find_plan, problem_of, times_needed, with_bound_of_all
from trainer.plan.memory_model import RankMemory
from trainer.plan.plan_file import load_plan, shards_of, table_plans
from trainer.plan.search.bound import lower_bound
from trainer.plan.search.options import CACHED, KERNELS, KINDS
from trainer.plan.search.placement import Placement
from trainer.plan.search.problem import Ranks, Table
from trainer.plan.search.rated import Rated
from trainer.plan.search.solve import TRIES, NothingFits, Solution
from trainer.plan.sharding_plan import PlannedTable, planned_table, to_sharding_plan


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
        problem: What was to be planned.
        solution: The placement and the bound; a shortage of memory where there is none.
    """

    problem: Problem
    solution: Solution | Shortage

    @property
    def config(self) -> Config:
        """The configuration, whose planner.hardware is the cluster's."""
        return self.problem.config

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.problem.cluster

    @property
    def tables(self) -> list[Table]:
        """The tables."""
        return self.problem.tables

    @property
    def ranks(self) -> Ranks:
        """The ranks, with all of their memory."""
        return self.problem.ranks

    @property
    def dense(self) -> DenseWork | None:
        """What the dense part does in a step; None where its time is not counted."""
        return self.problem.dense

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

    @cached_property
    def memory(self) -> RankMemory:
        """The predicted peak of each rank."""
        return self.problem.peak(self.found)

    @property
    def fullest(self) -> np.ndarray:
        """Bytes of the fullest rank, on the GPU and on the host, `[2]`."""
        return self.memory.total.max(axis=0)

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
    problem = problem_on(model, config, cluster)
    return Planned(problem, _solved(problem, model, tries))


def problem_on(model: nn.Module, config: Config, cluster: Cluster) -> Problem:
    """Returns what is to be placed on a cluster; arguments as above.

    Raises:
        InputError: The ranks cannot share the batch, or the tables cannot be sharded as allowed.
    """
    check_batch(config, cluster)
    config = config.model_copy(update={"planner": config.planner.model_copy(update={"hardware": cluster.name})})
    return problem_of(model, config, cluster)


def _solved(problem: Problem, model: nn.Module, tries: int) -> Solution | Shortage:
    planner, cluster = problem.planner, problem.cluster
    if planner.plan:
        plan = load_plan(planner.plan, table_shapes(model), cluster.ranks, cluster.per_host, cluster.device_type)
        return _rated(planner.plan, plan, problem)
    try:
        return find_plan(problem, tries)
    except NothingFits as error:
        return Shortage(times_needed(problem) if error.is_proven else 1.0)


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


def _rated(url: str, plan: ShardingPlan, problem: Problem) -> Solution:
    """Returns a plan that was made elsewhere with the costs of this planner, and the bound beside it."""
    placement = Placement(problem.rated, problem.ranks, problem.for_shards(), np.zeros(2))
    shardings = table_plans(plan)
    for number, table in enumerate(problem.tables):
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
    return with_bound_of_all(problem, Solution(placement, bound))


def _option(rated: Rated, table: int, wanted: tuple[int, int, int, float]) -> int | None:
    options = rated.options
    for option in range(*rated.of_table(table).indices(len(options))):
        kind, kernel, columns, cached = wanted
        same = (options.kind[option], options.kernel[option], options.columns[option]) == (kind, kernel, columns)
        if same and (kernel != CACHED or np.isclose(options.cached[option], cached)):
            return option
    return None
