"""Plans for clusters that the command line names."""

from torch import nn

from torchx_recsys.apps.plan.clusters import check_batch
from torchx_recsys.planner.hardware import Cluster
from torchx_recsys.planner.plan import NotRatedError, Planned, Problem, plan, rate_plan
from torchx_recsys.planner.search import TRIES
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.embeddings import table_shapes
from trainer.plan.make_plan import problem_of
from trainer.plan.plan_file import load_plan
from trainer.plan.sharding_plan import even_table, table_plans
from trainer.plan.tables import check_options


def problem_on(model: nn.Module, config: Config, cluster: Cluster) -> Problem:
    """Returns the planning problem for a cluster that the command line names.

    Args:
        model: The unsharded model.
        config: The configuration; its planner.hardware is replaced by the cluster's.
        cluster: The cluster.

    Raises:
        InputError: The ranks cannot share the batch, or the tables cannot be sharded as allowed.
    """
    check_batch(config.data.global_batch_size, cluster)
    config = config.model_copy(update={"planner": config.planner.model_copy(update={"hardware": cluster.name})})
    problem = problem_of(model, config, cluster)
    check_options(problem)
    return problem


def plan_on(model: nn.Module, config: Config, cluster: Cluster, tries: int = TRIES) -> Planned:
    """Plans for a cluster, or rates the plan that planner.plan names.

    Args:
        model: The unsharded model.
        config: The configuration; its planner.hardware is replaced by the cluster's.
        cluster: The cluster.
        tries: How often the search may repack tables; fewer for a quick answer.

    Raises:
        InputError: The tables cannot be sharded as allowed, or the plan is not for these tables and this cluster.
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
