"""What the planner plans of a configuration and a model, for a cluster given by name or for this machine."""

from functools import partial

from torch import nn

from planner.hardware import Cluster
from planner.plan import Problem
from planner.planned import NotRatedError, Planned, plan, rate_plan
from planner.problem import Topology
from planner.solve import TRIES
from planner.systems import SYSTEMS
from trainer.config.plan import PlannerConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.embeddings import table_shapes
from trainer.plan.allowed_types import with_allowed_types
from trainer.plan.dense_part import dense_part
from trainer.plan.plan_file import load_plan
from trainer.plan.sharding_plan import even_table, table_plans
from trainer.plan.tables import check_options, tables_to_plan
from trainer.plan.topology import topology_to_plan_for

RESERVE, RESERVE_OF_TORCHREC = 0.05, 0.15


def problem_of(model: nn.Module, config: Config, cluster: Cluster) -> Problem:
    """Returns what is to be planned of a model.

    Args:
        model: The unsharded model.
        config: The configuration.
        cluster: The cluster to plan for.

    Raises:
        InputError: The configuration asks for a sharding type that a table cannot have.
    """
    planner = with_allowed_types(config)
    topology = _topology(config, planner, cluster)
    counts_all = planner.engine == "search" and topology.speeds is not None
    reserve = RESERVE if counts_all else RESERVE_OF_TORCHREC
    return Problem(
        cluster=cluster,
        tables=tables_to_plan(model, config, planner),
        topology=topology,
        measure_dense=partial(dense_part, config, cluster.ranks),
        reserve=reserve if planner.reserve is None else planner.reserve,
        counts_all=counts_all,
        slower=planner.slower_for_memory,
        of_systems=_of_systems(config, planner, cluster) if topology.system else {},
    )


def _topology(config: Config, planner: PlannerConfig, cluster: Cluster) -> Topology:
    shape = cluster.ranks, cluster.per_host, cluster.device_type
    return topology_to_plan_for(config.data, planner, config.comms, config.train, *shape)


def _of_systems(config: Config, planner: PlannerConfig, cluster: Cluster) -> dict[str, Topology]:
    return {name: _topology(config, planner.model_copy(update={"system": name}), cluster) for name in SYSTEMS}


def problem_on(model: nn.Module, config: Config, cluster: Cluster) -> Problem:
    """Returns what is to be planned for a cluster that the command line names.

    Args:
        model: The unsharded model.
        config: The configuration; its planner.hardware is replaced by the cluster's.
        cluster: The cluster.

    Raises:
        InputError: The ranks cannot share the batch, or the tables cannot be sharded as allowed.
    """
    check_batch(config, cluster)
    config = config.model_copy(update={"planner": config.planner.model_copy(update={"hardware": cluster.name})})
    problem = problem_of(model, config, cluster)
    check_options(problem)
    return problem


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


def plan_on(model: nn.Module, config: Config, cluster: Cluster, tries: int = TRIES) -> Planned:
    """Plans for a cluster, or rates the plan that planner.plan names.

    Args:
        model: The unsharded model.
        config: The configuration; its planner.hardware is replaced by the cluster's.
        cluster: The cluster.
        tries: How often the search may pack tables anew; fewer for a quick answer.

    Raises:
        InputError: The tables cannot be sharded as allowed, or the plan does not belong to them and to the cluster.
    """
    problem = problem_on(model, config, cluster)
    if config.planner.plan:
        return _rated(config.planner.plan, model, problem)
    return plan(problem, tries)


def _rated(url: str, model: nn.Module, problem: Problem) -> Planned:
    cluster = problem.cluster
    shardings = table_plans(load_plan(url, table_shapes(model), cluster.ranks, cluster.per_host, cluster.device_type))
    placed = [even_table(shardings[table.name], (table.rows, table.columns)) for table in problem.tables]
    try:
        return rate_plan(problem, placed)
    except NotRatedError as error:
        table, name = error.table, problem.tables[error.number].name
        raise InputError(
            f"planner.plan is '{url}', where table '{name}' is {table.kind} {table.kernel} in shards of "
            f"{table.shard_columns} columns on ranks {table.ranks}, which the planner would not choose and cannot "
            "rate; leave planner.plan out to plan anew"
        ) from error
