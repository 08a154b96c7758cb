"""The planning problem of a configuration and a model, for a cluster given by name or this machine."""

from functools import partial

from torch import nn

from torchx_recsys.planner.hardware import Cluster
from torchx_recsys.planner.plan import Problem
from torchx_recsys.planner.topology import SYSTEMS, Topology
from trainer.config.plan import PlannerConfig
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext
from trainer.plan.allowed_types import with_allowed_types
from trainer.plan.dense_part import dense_part
from trainer.plan.tables import tables_to_plan
from trainer.plan.topology import topology_to_plan_for

RESERVE = 0.05


def problem_of(model: nn.Module, config: Config, cluster: Cluster) -> Problem:
    """Returns the planning problem of a model.

    Args:
        model: The unsharded model.
        config: The configuration.
        cluster: The cluster to plan for.

    Raises:
        InputError: The configuration asks for a sharding type that a table cannot have.
    """
    planner = with_allowed_types(config)
    topology = _topology(config, planner, cluster)
    return Problem(
        cluster=cluster,
        tables=tables_to_plan(model, config, planner),
        topology=topology,
        measure_dense=partial(dense_part, config, cluster.ranks),
        reserve=RESERVE if planner.reserve is None else planner.reserve,
        slower=planner.slower_for_memory,
        of_systems=_of_systems(config, planner, cluster) if topology.system else {},
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
