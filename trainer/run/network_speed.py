"""The speed at which ranks exchange data, in pairs and all together.

A pair is as slow as the slower of the two, and an all-reduce as the slowest rank, so neither names the slow rank.
Therefore every rank has another partner in each round, and counts by its best exchange: a slow rank is slow with every
partner, while its partners are fast with others. DLRover checks nodes in this way before training, in two rounds:
https://github.com/intelligent-machine-learning/dlrover/blob/master/docs/design/straggler-detection.md
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from trainer.core.distributed import DistributedContext

BYTES = 16 * 2**20  # long enough that latency does not count, and little of a GPU's memory
REPEATS = 6  # the first of them connects, and waits for a partner that is still busy
ROUNDS = 3  # a rank counts as slow by mistake if all its partners are


def pair_speed(
    context: DistributedContext, hosts: list[str], group: dist.ProcessGroup, note: Callable[[int], None]
) -> float | None:
    """Exchanges data with several partners in turn, and returns the best speed of one direction, in GB/s.

    Args:
        context: This process among the ranks.
        hosts: The host of each rank.
        group: A group of all ranks. NCCL adds a communicator for each pair, until the group is destroyed.
        note: Called with the partner before each exchange.

    Returns:
        10^9 bytes per second; None for a rank without a partner, on a host with more ranks than the others.
    """
    data = torch.zeros(BYTES // 4, device=context.device)

    def swap(partner: int) -> None:
        for sender in sorted((context.rank, partner)):
            if sender == context.rank:
                dist.send(data, partner, group)
            else:
                dist.recv(data, partner, group)

    seconds = []
    for partner in partners(hosts, context.rank):
        note(partner)
        seconds.append(_best_seconds(lambda partner=partner: swap(partner), context.device))
    return 2 * BYTES / min(seconds) / 1e9 if seconds else None


def all_reduce_speed(context: DistributedContext, group: dist.ProcessGroup) -> float:
    """Returns the best speed of an all-reduce in GB/s of traffic per rank, which NCCL's tests call bus bandwidth."""
    data = torch.zeros(BYTES // 4, device=context.device)
    seconds = _best_seconds(lambda: dist.all_reduce(data, group=group), context.device)
    return 2 * (context.world_size - 1) / context.world_size * BYTES / seconds / 1e9


def partners(hosts: list[str], rank: int) -> list[int]:
    """Returns the ranks that a rank exchanges data with, in order.

    The partners are on other hosts, so that the network is measured; on the same host if there is only one host.

    Args:
        hosts: The host of each rank.
        rank: The rank.
    """
    of_host: dict[str, list[int]] = {}
    for other, host in enumerate(hosts):
        of_host.setdefault(host, []).append(other)
    sides = [*of_host.values()]
    if len(sides) == 1:
        sides = [[other] for other in sides[0]]
    side = next(number for number, ranks in enumerate(sides) if rank in ranks)
    place, met = sides[side].index(rank), []
    for number in range(ROUNDS):
        other = _opponent(side, number, len(sides))
        if other is None:
            continue
        size = min(len(sides[side]), len(sides[other]))
        if place < size:
            # Shifted from round to round, so that ranks of two hosts have several partners, too.
            met.append(sides[other][(place + (number if side < other else -number)) % size])
    return [*dict.fromkeys(met)]


def _opponent(player: int, number: int, players: int) -> int | None:
    """Returns whom a player meets in a round of a round-robin tournament, None in a round without a match.

    An odd number of players sits in a circle and meets across it; the last of an even number sits in its centre.
    """
    circle = players - 1 + players % 2
    if player == circle:
        return number * (circle + 1) // 2 % circle
    other = (number - player) % circle
    if other != player:
        return other
    return circle if circle < players else None


def _best_seconds(exchange: Callable[[], object], device: torch.device) -> float:
    """Returns the shortest time of an exchange: other work of the machines only adds to the time."""
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        exchange()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)
