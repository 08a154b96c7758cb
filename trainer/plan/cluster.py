"""Clusters to plan for, as flags name them, and the cluster of a job."""

import re

from planner.hardware import HOSTS, Cluster, usual_ranks
from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError, nearest

CLUSTER = re.compile(r"(?P<host>[^:]+):(?P<nodes>\d+)(x(?P<ranks>\d+))?")
MOST_RANKS = 65_536


def parse_cluster(text: str) -> Cluster:
    """Returns the cluster that HOST:NODES or HOST:NODESxRANKS names.

    Raises:
        InputError: There is no such host, or it has not so many ranks.
    """
    found = CLUSTER.fullmatch(text)
    if not found:
        raise InputError(f"--on is '{text}'; write HOST:NODES, such as h100:8, or HOST:NODESxRANKS, such as h100:1x4")
    name, nodes = found["host"], int(found["nodes"])
    if name not in HOSTS:
        raise InputError(f"--on is '{text}', but '{name}' is no known host{nearest(name, HOSTS)}")
    ranks = int(found["ranks"]) if found["ranks"] else usual_ranks(HOSTS[name])
    most = HOSTS[name].gpus or HOSTS[name].cpu
    if not 1 <= ranks <= most:
        raise InputError(f"--on is '{text}', with {ranks} ranks on a host; {name} has 1 to {most}")
    if not 1 <= nodes * ranks <= MOST_RANKS:
        raise InputError(f"--on is '{text}', which makes {nodes * ranks} ranks; use 1 to {MOST_RANKS}")
    return Cluster(name, nodes, ranks, HOSTS[name].gpu is not None)


def cluster_of_job(hardware: str | None, context: DistributedContext) -> Cluster:
    """Returns the cluster that this job runs on.

    Args:
        hardware: The kind of host to count with; None for this machine.
        context: This process among the ranks.
    """
    nodes = context.world_size // context.local_world_size
    return Cluster(hardware, nodes, context.local_world_size, context.device.type != "cpu")


def cluster_of(hardware: str | None, world_size: int, device_type: str) -> Cluster:
    """Returns the cluster that a number of ranks needs.

    Args:
        hardware: The kind of host; None for this machine.
        world_size: Number of ranks.
        device_type: The device of a rank of this machine.

    Raises:
        InputError: The ranks do not fill the hosts.
    """
    if world_size < 1:
        raise InputError(f"--world-size is {world_size}; it must be at least 1")
    if hardware is None:
        return Cluster(None, 1, world_size, device_type == "cuda")
    host = HOSTS[hardware]
    per_host = min(world_size, host.gpus or world_size)
    if world_size % per_host:
        raise InputError(f"--world-size is {world_size}; on hosts of {host.gpus} GPUs it must be a multiple of that")
    return Cluster(hardware, world_size // per_host, per_host, host.gpu is not None)
