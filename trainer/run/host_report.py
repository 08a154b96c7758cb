"""The report of a preflight: how fast the hosts are, or which of them keep it from ending."""

import statistics
from collections.abc import Collection, Iterable

from tabulate import tabulate

from trainer.core.distributed import DistributedContext
from trainer.run.notes import RANK0, Notes

SLOW_FACTOR = 2.0  # DLRover's: healthy hosts of one kind differ by less
SHOWN_HOSTS = 16


def diagnose(context: DistributedContext, notes: Notes, in_time: Collection[int]) -> str:
    """Returns which ranks keep the exchange from ending, and their hosts.

    Args:
        context: This process among the ranks.
        notes: Those of all ranks, with an `answer` of each rank that lives.
        in_time: The ranks that came to the preflight in its time.
    """
    hosts, partner, broken = _hosts(context, notes), notes.read("partner"), notes.read("broken")
    if silent := hosts.keys() - (notes.read("answer").keys() & in_time):
        return f"{_names(silent, hosts)} did not answer"
    if broken:
        return "; ".join(f"{_names([rank], hosts)} failed with '{text}'" for rank, text in broken.items())
    # Others wait for these two: their partners have partners of their own.
    stuck = [(rank, other) for rank, other in partner.items() if other in hosts and partner.get(other) == rank < other]
    pairs = (" and ".join(_names([rank], hosts) for rank in pair) for pair in stuck)
    return f"no data passed between {', '.join(pairs)}" if stuck else "not all ranks exchanged data"


def _hosts(context: DistributedContext, notes: Notes) -> dict[int, str]:
    """Returns the host of every rank; of one that has not come here, that of another rank of its node."""
    known, size = notes.read("host"), context.local_world_size
    of_node = {rank // size: host for rank, host in known.items()}
    nodes = {rank: rank // size for rank in range(context.world_size)}
    return {rank: known.get(rank, of_node.get(node, f"node {node} (host unknown)")) for rank, node in nodes.items()}


def _names(ranks: Iterable[int], hosts: dict[int, str]) -> str:
    """Returns ranks by host: `ranks 1, 2 on node1; rank 4 on node2`."""
    of_host: dict[str, list[str]] = {}
    for rank in sorted(ranks):
        of_host.setdefault(hosts[rank], []).append(str(rank))
    return "; ".join(f"rank{'s' * (len(of) > 1)} {', '.join(of)} on {host}" for host, of in of_host.items())


def report(notes: Notes) -> str:
    """Returns the speed of the slowest rank of each host, the slowest host first, and a warning of slow ranks."""
    hosts, speeds = dict(enumerate(notes.read("hosts", RANK0)[0])), notes.read("speeds")
    pair = {rank: speed for rank, (speed, _) in speeds.items() if speed is not None}
    slowest: dict[str, list[object]] = {}
    for rank in sorted(pair, key=pair.__getitem__):
        slowest.setdefault(hosts[rank], [hosts[rank], rank, pair[rank]])
    table = tabulate([*slowest.values()][:SHOWN_HOSTS], ["host", "slowest rank", "GB/s"], floatfmt=".2f")
    report = f"preflight: all-reduce at {speeds[0][1]:.2f} GB/s per rank; pairs of ranks:\n\n{table}\n"
    median = statistics.median(pair.values())
    if slow := [rank for rank, speed in pair.items() if speed * SLOW_FACTOR < median]:
        report += (
            f"\nwarning: {_names(slow, hosts)} exchanged data at less than {1 / SLOW_FACTOR:.0%} of the median of "
            f"{median:.2f} GB/s; check the host or leave it out\n"
        )
    return report
