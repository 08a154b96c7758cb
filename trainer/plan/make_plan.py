"""Makes the plan of a model: states the planning problem, solves it, and keeps the plan of a run that resumes.

`problem_of` states the problem, `torchx_recsys/planner` solves it without torch, and `sharding_plan.py` converts the
solution. A job calls `make_plan`; a plan for another cluster is made by `plan_for`.
"""

from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any

from torch import nn
from torchrec.distributed.types import ShardingPlan

from torchx_recsys.planner.hardware import GIB, HOSTS, Cluster
from torchx_recsys.planner.plan import Problem, find_plan
from torchx_recsys.planner.reasons import in_words, lack_for_copy, takes
from torchx_recsys.planner.search import NothingFits, Solution
from torchx_recsys.planner.tables import KERNELS, SHARDING_TYPES
from torchx_recsys.planner.topology import SYSTEMS, Topology
from trainer.config.data import DataConfig
from trainer.config.plan import PlannerConfig
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.errors import DamagedError, InputError, nearest
from trainer.core.run_directory import RunDirectory, pass_over
from trainer.core.storage import digest
from trainer.models.embeddings import table_shapes, value_bytes
from trainer.plan.communication import REDUCING
from trainer.plan.dense_part import dense_part
from trainer.plan.measurements import with_statistics
from trainer.plan.plan_file import load_plan, parse_plan
from trainer.plan.sharding_plan import table_bytes, to_sharding_plan
from trainer.plan.tables import check_options, kinds_of, tables_to_plan, with_allowed_types
from trainer.plan.topology import topology_to_plan_for

RESERVE = 0.05
PLANNED_FOR = "planned_for"
"""The fact of run.json that names what its plan was made for."""
DECIDES_NOTHING: dict[str, Any] = {"train": {"steps", "epochs"}, "checkpoint": True, "report": True}
"""Keys of the configuration."""


def make_plan(
    model: nn.Module, config: Config, context: DistributedContext, run: RunDirectory | None = None
) -> tuple[ShardingPlan, str, str]:
    """Plans on rank 0, or loads the plan that the configuration names, and returns it on every rank.

    Args:
        model: The unsharded model.
        config: The configuration.
        context: This process among the ranks.
        run: A run that keeps its plan unless something that decides the plan has changed.

    Returns:
        The plan, a line on its quality if known, and a digest of everything that decided it; empty for a loaded plan.

    Raises:
        InputError: The plan does not fit the memory, or does not belong to these tables and ranks.
    """
    cluster = cluster_of_job(config.planner.hardware, context)
    if config.planner.plan:
        return load_plan(config.planner.plan, table_shapes(model), *_ranks(cluster)), "", ""
    return broadcast_from_rank0(context, lambda: _keep_or_plan(model, with_statistics(config), cluster, run))


def _ranks(cluster: Cluster) -> tuple[int, int, str]:
    return cluster.ranks, cluster.per_host, cluster.device_type


def _keep_or_plan(
    model: nn.Module, config: Config, cluster: Cluster, run: RunDirectory | None
) -> tuple[ShardingPlan, str, str]:
    problem = problem_of(model, config, cluster)
    planned_for = what_decides(problem, config)
    if run and (text := find_kept_plan(run, planned_for)):
        plan = parse_plan(text, run.url_of("plan.json"), table_shapes(model), *_ranks(cluster))
        return plan, "the plan is that of the run so far, as nothing that decides it has changed", planned_for
    return *_plan(problem, model, config), planned_for


def plan_for(model: nn.Module, config: Config, cluster: Cluster) -> tuple[ShardingPlan, str]:
    """Plans for any cluster, without a process group.

    Returns:
        The plan, and a line on its quality if known.

    Raises:
        InputError: The plan does not fit the memory.
    """
    return _plan(problem_of(model, config, cluster), model, config)


def _plan(problem: Problem, model: nn.Module, config: Config) -> tuple[ShardingPlan, str]:
    try:
        check_options(problem)
        solution = find_plan(problem)
        gap = say_gap(solution, config.planner) if problem.tables else ""
        remarks = gap, lack_for_copy(problem.peak(solution), problem)
        return to_sharding_plan(solution, problem.tables, model), "\n".join(filter(None, remarks))
    except NothingFits as error:
        raise InputError(_explain(error, model, config, problem)) from error


def say_gap(solution: Solution, planner: PlannerConfig) -> str:
    """Returns a line on the estimated cost of a plan, and how far it can be from the best plan."""
    best = f"no possible plan is more than {max(0.0, solution.gap):.2%} faster"
    if solution.placement.topology.on_gpu or planner.calibration:
        cost = f"{solution.placement.cost:.3g} ms of a step"
        return f"embeddings of the slowest rank: {cost} by the planner's estimate; {best}"
    return f"by the planner's estimate {best}; `python -m trainer calibrate` measures this host"


def check_planner(data: DataConfig, config: PlannerConfig) -> None:
    """Refuses unknown hosts, sharding types, kernels and tables.

    Raises:
        InputError: A name is unknown. The message names the key, the value and what is allowed.
    """
    if config.hardware and config.hardware not in HOSTS:
        raise InputError(
            f"planner.hardware is '{config.hardware}', which is no known host{nearest(config.hardware, HOSTS)}"
        )
    tables = set(data.features_of_tables())
    choices = {"planner.sharding_types": config.sharding_types}
    kernels = {"planner.compute_kernels": config.compute_kernels}
    for name, table in config.tables.items():
        if name not in tables:
            raise InputError(f"planner.tables.{name}: there is no such table{nearest(name, tables)}")
        choices[f"planner.tables.{name}.sharding_types"] = table.sharding_types
        kernels[f"planner.tables.{name}.compute_kernels"] = table.compute_kernels
    for key, types in choices.items():
        for kind in set(types) - set(SHARDING_TYPES):
            raise InputError(f"{key} holds '{kind}', which is no sharding type{nearest(kind, SHARDING_TYPES)}")
    for key, names in kernels.items():
        for kernel in set(names) - set(KERNELS):
            raise InputError(f"{key} holds '{kernel}', which is no compute kernel{nearest(kernel, KERNELS)}")


def _explain(error: NothingFits, model: nn.Module, settings: Config, problem: Problem) -> str:
    data, config = settings.data, with_allowed_types(settings)
    tables, batch = _memory_needed(model, data, config, problem.topology.ranks)
    limits = ", ".join(
        f"planner.{key} is {'unset' if getattr(config, key) is None else getattr(config, key)}"
        for key in ("memory_gib", "host_memory_gib", "reserve")
    )
    if problem.for_shards()[problem.device] <= 0:
        return (
            f"data.global_batch_size is {data.global_batch_size}, and a rank's memory has no room for tables: of "
            f"{in_words(problem.there[problem.device])} it takes {takes(problem.beside_shards())}; {limits}; use more "
            "ranks, a smaller batch or train.micro_batches, or give more memory"
        )
    if batch > tables:
        return (
            f"data.global_batch_size is {data.global_batch_size}; its ids and embeddings, {batch / GIB:.3g} GiB, do "
            f"not fit the memory of the ranks, beside {tables / GIB:.3g} GiB of tables: {limits}; use a smaller "
            "batch or more ranks, or give more memory"
        )
    found = "do not fit" if error.is_proven else "found no place in"
    return (
        f"the tables, {tables / GIB:.3g} GiB without their optimizer's state and averages, {found} the memory of "
        f"the ranks: {limits}; give more memory, use more ranks, or allow more planner.sharding_types"
    )


def _memory_needed(model: nn.Module, data: DataConfig, config: PlannerConfig, world_size: int) -> tuple[float, float]:
    """Returns the least memory in bytes, over all ranks, that the tables and a batch's ids and embeddings take."""
    shapes, widths = table_shapes(model), value_bytes(model)
    tables = batch = 0.0
    for table, features in data.features_of_tables().items():
        types = set(kinds_of(table, config))
        tables += table_bytes(shapes[table], widths[table]) * (world_size if types == {"data_parallel"} else 1)
        pooled = not data.holds_sequences(table)
        # Every rank holds a partial sum of every pooled embedding.
        copies = world_size if pooled and types <= set(REDUCING) else 1
        for hotness in (data.sparse[feature].hotness for feature in features):
            embeddings = min(1, hotness) if pooled else hotness
            batch += data.global_batch_size * (8 * hotness + 4 * embeddings * shapes[table][1] * copies)
    return tables, batch


def problem_of(model: nn.Module, config: Config, cluster: Cluster) -> Problem:
    """Returns the planning problem of a model.

    Args:
        model: The unsharded model.
        config: The configuration.
        cluster: The cluster to plan for.

    Raises:
        InputError: The configuration requires a sharding type that a table cannot have.
    """
    planner = with_allowed_types(config)
    topology = _topology(config, planner, cluster)
    return Problem(
        cluster=cluster,
        tables=tables_to_plan(model, config, planner, cluster.on_gpu),
        topology=topology,
        measure_dense=partial(dense_part, config, cluster.ranks, cluster.on_gpu),
        reserve=RESERVE if planner.reserve is None else planner.reserve,
        slower=planner.slower_for_memory,
        of_systems=_of_systems(config, planner, cluster) if topology.system else {},
        copies=config.checkpoint.needs_copy or cluster.on_gpu,
    )


def _topology(config: Config, planner: PlannerConfig, cluster: Cluster) -> Topology:
    shape = cluster.ranks, cluster.per_host, cluster.device_type
    return topology_to_plan_for(config.data, planner, config.comms, config.train, *shape)


def _of_systems(config: Config, planner: PlannerConfig, cluster: Cluster) -> dict[str, Topology]:
    return {name: _topology(config, planner.model_copy(update={"system": name}), cluster) for name in SYSTEMS}


def cluster_of_job(hardware: str | None, context: DistributedContext) -> Cluster:
    """Returns the cluster that this job runs on.

    Args:
        hardware: The kind of host to plan for; None for this machine.
        context: This process among the ranks.
    """
    nodes = context.world_size // context.local_world_size
    return Cluster(hardware, nodes, context.local_world_size, context.device.type != "cpu")


def what_decides(problem: Problem, config: Config) -> str:
    """Returns a digest of everything that decides a plan: the problem, the settings and the versions of packages."""
    # The dense part is left out: it follows from the configuration, and measuring it takes seconds.
    return digest(
        {
            "cluster": asdict(problem.cluster),
            "tables": [asdict(table) for table in problem.tables],
            "topology": asdict(problem.topology),
            "config": config.model_dump(mode="json", exclude=DECIDES_NOTHING),
            "versions": [version(name) for name in ("torchx-recsys", "torch", "torchrec")],
        }
    )


def find_kept_plan(run: RunDirectory, planned_for: str) -> str:
    """Returns a run's plan.json if it was made for the same problem and not edited by hand; empty otherwise."""
    facts = run.facts()
    if facts.get(PLANNED_FOR) != planned_for:
        return ""
    try:
        is_same = facts.get("plan") == digest(run.read_json("plan.json"))
        return (run.read("plan.json") or "") if is_same else ""
    except DamagedError as error:
        pass_over(error)
        return ""
