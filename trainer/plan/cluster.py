"""Clusters to plan for: a kind of host and how many of it, or this machine."""

import re
from dataclasses import dataclass

from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError, nearest
from trainer.plan.hardware import HOSTS, Host

CLUSTER = re.compile(r"(?P<host>[^:]+):(?P<nodes>\d+)(x(?P<ranks>\d+))?")
MOST_RANKS = 65_536


@dataclass(frozen=True)
class Cluster:
    """Hosts of one kind.

    Attributes:
        name: Name of the kind of host; None for this machine.
        nodes: Number of hosts.
        per_host: Ranks of each.
        on_gpu: Whether each rank has a GPU.
    """

    name: str | None
    nodes: int
    per_host: int
    on_gpu: bool

    def __str__(self) -> str:
        """The cluster as `--on` takes it."""
        host = self.host
        if not host:
            return "this machine"
        return f"{self.name}:{self.nodes}" + (f"x{self.per_host}" if self.per_host != _usual_ranks(host) else "")

    @property
    def host(self) -> Host | None:
        """Figures of a host; None for this machine's."""
        return HOSTS[self.name] if self.name else None

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.nodes * self.per_host

    @property
    def device_type(self) -> str:
        """The device of a rank."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def shape(self) -> str:
        """The ranks as `-j` takes them."""
        return f"{self.nodes}x{self.per_host}"


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
    ranks = int(found["ranks"]) if found["ranks"] else _usual_ranks(HOSTS[name])
    most = HOSTS[name].gpus or HOSTS[name].cpu
    if not 1 <= ranks <= most:
        raise InputError(f"--on is '{text}', with {ranks} ranks on a host; {name} has 1 to {most}")
    if not 1 <= nodes * ranks <= MOST_RANKS:
        raise InputError(f"--on is '{text}', which makes {nodes * ranks} ranks; use 1 to {MOST_RANKS}")
    return Cluster(name, nodes, ranks, HOSTS[name].gpu is not None)


def _usual_ranks(host: Host) -> int:
    """Returns one rank for each GPU, or one for a host without any."""
    return max(1, host.gpus)


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
