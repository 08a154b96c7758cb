"""Parses clusters named by flags. Without torch, so that wrong flags fail at once."""

import re
from collections.abc import Sequence

from torchx_recsys.apps.plan.prices import Prices
from torchx_recsys.planner.hardware import HOSTS, Cluster, usual_ranks
from trainer.config.root import Config
from trainer.core.errors import InputError, nearest

CLUSTER = re.compile(r"(?P<host>[^:]+):(?P<nodes>\d+)(x(?P<ranks>\d+))?")
MOST_RANKS = 65_536
ALL = "all"
MOST_HOSTS = 64


def named_by_on(on: Sequence[str], config: Config) -> list[Cluster]:
    """Returns the clusters that --on names.

    Raises:
        InputError: There is no such cluster, or its ranks cannot share the batch.
    """
    if not on:
        raise InputError("--on names no cluster; write HOST:NODES, such as h100:8")
    if config.planner.hardware:
        raise InputError(
            f"planner.hardware is '{config.planner.hardware}' and --on is '{' '.join(on)}', which names the host, too; "
            "use one"
        )
    clusters = [parse_cluster(one) for one in on]
    for cluster in clusters:
        check_batch(config.data.global_batch_size, cluster)
    return clusters


def parse_cluster(text: str) -> Cluster:
    """Returns the cluster that HOST:NODES or HOST:NODESxRANKS names.

    Raises:
        InputError: There is no such host, or the host has fewer ranks.
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


def check_batch(batch: int, cluster: Cluster) -> None:
    """Refuses ranks that cannot share the batch.

    Raises:
        InputError: The ranks do not divide the batch.
    """
    ranks = cluster.ranks
    if batch % ranks:
        raise InputError(
            f"{cluster} has {ranks} ranks, which do not divide data.global_batch_size, {batch}; use another number of "
            f"hosts, or a multiple of {ranks}, such as {max(1, round(batch / ranks)) * ranks}"
        )


def clusters_of_hosts(hosts: Sequence[str], prices: Prices) -> list[Cluster]:
    """Returns all clusters of hosts that --find names.

    Raises:
        InputError: A host has no price.
    """
    with_gpus = [name for name in prices.hosts if HOSTS[name].gpu]
    if ALL in hosts and not with_gpus:
        raise InputError("--find is 'all', but --prices has no host with GPUs; name hosts instead of all")
    if not hosts:
        raise InputError("--find names no host; write all, or hosts such as h100")
    names = dict.fromkeys([*(with_gpus if ALL in hosts else []), *(name for name in hosts if name != ALL)])
    for name in names:
        prices.of_host(name)
    return [parse_cluster(f"{name}:{nodes}") for name in names for nodes in range(1, MOST_HOSTS + 1)]


def sharing_batch(clusters: Sequence[Cluster], batch: int) -> list[Cluster]:
    """Returns the clusters whose ranks divide a batch.

    Raises:
        InputError: There is no such cluster.
    """
    found = [cluster for cluster in clusters if batch % cluster.ranks == 0]
    if not found:
        raise InputError(
            f"data.global_batch_size is {batch}, which the ranks of no cluster divide; use a multiple of 8"
        )
    return found
