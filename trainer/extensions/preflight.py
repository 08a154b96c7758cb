"""The preflight of a job: all ranks exchange data, and rank 0 names the hosts that are dead or slow.

A pair is as slow as the slower of the two, and an all-reduce as the slowest rank, so neither names the slow rank.
Therefore every rank has another partner in each round, and counts by its best exchange: a slow rank is slow with every
partner, while its partners are fast with others. DLRover checks nodes in this way before training, in two rounds:
https://github.com/intelligent-machine-learning/dlrover/blob/master/docs/design/straggler-detection.md
"""

import json
import math
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from tabulate import tabulate
from torch.distributed.distributed_c10d import _get_default_store

from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, rank0_host
from trainer.core.errors import LostRankError, first_line, report_error
from trainer.core.outcome import DONE, FAILED
from trainer.core.timeouts import ANSWER_SECONDS, lost_rank

POLL_SECONDS = 0.1
RANK0 = frozenset({0})
"""The ranks of a note that only rank 0 writes."""
SLOW_FACTOR = 2.0  # DLRover's value; healthy hosts of a kind differ by less
SHOWN_HOSTS = 16
BYTES = 16 * 2**20  # size of an exchange: large enough to make latency negligible, small beside a GPU's memory
REPEATS = 6  # number of exchanges with a partner; the first also connects, and waits while the partner is busy
ROUNDS = 3  # number of partners; a rank counts as slow by mistake only if all its partners are slow
REMEDY = "check these hosts or leave them out, or raise train.preflight_seconds"


def preflight(config: Config, context: DistributedContext) -> None:
    """Exchanges data between all ranks and reports how fast hosts are; ends the process if a rank does not answer.

    Args:
        config: The configuration, with the time for all ranks to come here and to exchange data.
        context: This process among the ranks.
    """
    if context.world_size == 1:
        return
    seconds = config.train.preflight_seconds
    code = _lead(context, seconds) if context.is_rank0 else _follow_in_time(context, 2 * (seconds + ANSWER_SECONDS))
    if code != DONE:
        os._exit(code)  # an exchange that hangs cannot be ended, and leaving its group would wait for it


class Notes:
    """Notes of the ranks to each other, in the store of the process group, which works while a collective hangs.

    Args:
        context: This process among the ranks.
        about: What the notes are about: a prefix of their keys in the store.
    """

    def __init__(self, context: DistributedContext, about: str) -> None:
        self._rank, self._ranks = context.rank, range(context.world_size)
        # Cloned, as a collective locks the store while it waits there for the address of a dead rank.
        store = _get_default_store().clone()  # pyrefly: ignore[missing-attribute]
        self._store = dist.PrefixStore(about, store)

    def write(self, subject: str, note: Any = None) -> None:
        """Writes this rank's note, which has to be JSON."""
        self._store.set(f"{subject}/{self._rank}", json.dumps(note))

    def read(self, subject: str, ranks: Collection[int] | None = None) -> dict[int, Any]:
        """Returns the notes of some ranks, or of all, by rank; ranks without a note are left out."""
        keys = {rank: f"{subject}/{rank}" for rank in self._those(ranks)}
        return {rank: json.loads(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])}

    def wait(self, subject: str, ranks: Collection[int] | None = None, seconds: float = math.inf) -> bool:
        """Waits for the notes of some ranks, or of all, and returns whether they came in time."""
        keys = [f"{subject}/{rank}" for rank in self._those(ranks)]
        deadline = time.monotonic() + seconds
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _those(self, ranks: Collection[int] | None) -> Collection[int]:
        return self._ranks if ranks is None else ranks


def _lead(context: DistributedContext, seconds: float) -> int:
    """Watches over the exchange as rank 0, decides how it ends and returns the exit code."""
    notes, exchange = _start(context)
    lost = _watch(context, notes, seconds)
    code = _report_lost(lost) if lost else DONE  # before any rank leaves: torchrun ends all when the first one does
    notes.write("asked")
    notes.write("lost", lost)
    if lost:
        notes.wait("left", notes.read("answer").keys() - RANK0, ANSWER_SECONDS)  # the store ends with this process
    else:
        exchange.join()
    return code


def _follow(context: DistributedContext) -> int:
    """Answers requests of rank 0, and returns the exit code once rank 0 has decided how the exchange ends."""
    notes, exchange = _start(context)
    notes.wait("asked", RANK0)
    notes.write("answer")
    notes.wait("lost", RANK0)
    if lost := notes.read("lost", RANK0)[0]:
        _record(lost)  # torchrun shows the records of ranks that ended, and rank 0 is the last to end
        notes.write("left")
        return FAILED
    exchange.join()
    return DONE


def _follow_in_time(context: DistributedContext, seconds: float) -> int:
    """Follows rank 0 for a limited time: rank 0 may be the last to come here, and may not answer."""
    # In a thread: a call to the store, which lives in rank 0, never returns if rank 0 stands still.
    result: Future[int] = Future()

    def follow() -> None:
        try:
            result.set_result(_follow(context))
        except RuntimeError as error:
            result.set_exception(error)

    threading.Thread(target=follow, name="preflight", daemon=True).start()
    try:
        return result.result(seconds)
    except (TimeoutError, RuntimeError):  # it is silent, or its host is gone
        return _report_lost(f"rank 0 on {rank0_host()} did not answer within {seconds:g} s")


def _start(context: DistributedContext) -> tuple[Notes, threading.Thread]:
    notes = Notes(context, "preflight")
    notes.write("host", socket.gethostname())
    exchange = threading.Thread(target=_exchange, args=(context, notes), name="exchange", daemon=True)
    exchange.start()
    return notes, exchange


def _report_lost(reason: str) -> int:
    return report_error(_record(reason))


def _record(reason: str) -> LostRankError:
    """Returns the error of a rank that does not answer; torchrun shows it in its report of the job."""
    return lost_rank(f"preflight: {reason}; {REMEDY}")


def _exchange(context: DistributedContext, notes: Notes) -> None:
    """Exchanges data once rank 0 has noted the hosts of all ranks.

    Notes the `partner` before each exchange, None before that of all ranks, and in the end `speeds`, or else `broken`.
    """
    notes.wait("hosts", RANK0)
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)  # each thread has a device of its own
    try:
        # A group of its own, as NCCL's communicators take memory until their group is destroyed.
        group = dist.new_group(timeout=context.collective_timeout)
        assert isinstance(group, dist.ProcessGroup)
        hosts = notes.read("hosts", RANK0)[0]
        pair = pair_speed(context, hosts, group, lambda partner: notes.write("partner", partner))
        notes.write("partner")  # none: all ranks
        notes.write("speeds", [pair, all_reduce_speed(context, group)])
        notes.wait("lost", RANK0)  # until all ranks are done with the group
        dist.destroy_process_group(group)
    except RuntimeError as error:  # of Gloo and NCCL: the other end is gone or out of reach
        notes.write("broken", first_line(error))


def _watch(context: DistributedContext, notes: Notes, seconds: float) -> str | None:
    """Starts the exchange once all ranks are there, and reports its end; returns why it has not ended in time."""
    deadline = time.monotonic() + seconds
    arrived = notes.wait("host", seconds=seconds)
    if arrived:
        notes.write("hosts", [*notes.read("host").values()])
    if arrived and notes.wait("speeds", seconds=deadline - time.monotonic()):
        print(_report(notes), flush=True)
        return None
    in_time = notes.read("host").keys()
    notes.write("asked")
    notes.write("answer")
    notes.wait("answer", seconds=ANSWER_SECONDS)
    return f"{_diagnose(context, notes, in_time)} within {seconds:g} s"


def _diagnose(context: DistributedContext, notes: Notes, in_time: Collection[int]) -> str:
    """Returns the ranks that keep the exchange from ending, and their hosts.

    Args:
        context: This process among the ranks.
        notes: Those of all ranks, with an `answer` of each rank that lives.
        in_time: The ranks that came to the preflight in time.
    """
    hosts, partner, broken = _hosts(context, notes), notes.read("partner"), notes.read("broken")
    if silent := hosts.keys() - (notes.read("answer").keys() & in_time):
        return f"{_names(silent, hosts)} did not answer"
    if broken:
        return "; ".join(f"{_names([rank], hosts)} failed with '{text}'" for rank, text in broken.items())
    # Two ranks that wait for each other: a rank whose partner waits for a third is not to blame.
    stuck = [(rank, other) for rank, other in partner.items() if other in hosts and partner.get(other) == rank < other]
    pairs = (" and ".join(_names([rank], hosts) for rank in pair) for pair in stuck)
    return f"no data passed between {', '.join(pairs)}" if stuck else "not all ranks exchanged data"


def _hosts(context: DistributedContext, notes: Notes) -> dict[int, str]:
    """Returns the host of every rank; for a rank that has not come here, the host of another rank of its node."""
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


def _report(notes: Notes) -> str:
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
