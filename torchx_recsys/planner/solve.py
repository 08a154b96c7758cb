"""The search: bound, placement under a bisected limit, improvement."""

from dataclasses import dataclass

import numpy as np

from torchx_recsys.planner.bound import Bound, allowed_under, lower_bound, relax
from torchx_recsys.planner.improve import improve
from torchx_recsys.planner.placement import Placement, place
from torchx_recsys.planner.problem import Topology
from torchx_recsys.planner.rated import Rated

FIRST, WIDER = 1.05, 1.5  # growth of a limit under which nothing was placed: 1.05, then 1.05 to the 1.5, ...
BISECTIONS = 10
GRAINS = (0.0, 0.2)
PARTS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5)  # of memory that choices may take, as shards leave gaps
TRIES = 2000  # to repack tables


@dataclass(frozen=True)
class Solution:
    """A placement and its bound.

    Attributes:
        placement: The placement.
        bound: The cost that no plan can beat.
    """

    placement: Placement
    bound: Bound

    @property
    def gap(self) -> float:
        """How much slower the slowest rank is than the bound, relative."""
        return self.placement.cost / self.bound.cost - 1


class NothingFits(Exception):
    """No choice of options fits the memory of the ranks, or none was found.

    Attributes:
        is_proven: Whether it is proven that no choice fits.
    """

    def __init__(self, is_proven: bool) -> None:
        super().__init__(f"proven: {is_proven}")
        self.is_proven = is_proven


def solve_within(
    rated: Rated, topology: Topology, memory: np.ndarray, slower: float = 0.0, tries: int = TRIES
) -> Solution:
    """Returns the best placement found for rated options within some memory; equal arguments give equal placements.

    Args:
        rated: The options.
        topology: The topology, whose own memory does not count.
        memory: Bytes of a rank, `[2]`.
        slower: How much slower than the fastest placement found the result may be, relative, to take the least memory
            of the fullest rank.
        tries: How often tables may be repacked to improve a placement.

    Raises:
        NothingFits: No placement was found.
    """
    fastest = solve_rated(rated, topology, memory, tries)
    if not slower:
        return fastest
    return _leanest(fastest, fastest.placement.cost * (1 + slower), 0 if topology.on_gpu else 1, tries)


def _leanest(fastest: Solution, limit: float, kind: int, tries: int) -> Solution:
    """Returns the solution under a cost limit whose fullest rank takes the least of a kind of memory."""
    placement, best = fastest.placement, fastest.placement
    memory = placement.memory_limit.copy()
    low, high = 0.0, float(best.memory[:, kind].max())
    for _ in range(BISECTIONS):
        memory[kind] = (low + high) / 2
        try:
            found = solve_rated(placement.rated, placement.topology, memory.copy(), tries).placement
        except NothingFits:
            found = None
        if found is None or found.cost > limit:
            low = memory[kind]
        else:
            best, high = found, float(found.memory[:, kind].max())
    return Solution(best, fastest.bound)


def solve_rated(rated: Rated, topology: Topology, memory: np.ndarray, tries: int = TRIES) -> Solution:
    """Returns the best placement found for rated options.

    Args:
        rated: The options.
        topology: The topology of identical ranks.
        memory: Bytes of a rank, `[2]`.
        tries: How often tables may be repacked to improve it.

    Raises:
        NothingFits: No placement was found.
    """
    bound = lower_bound(rated, memory, topology.ranks)
    if not np.isfinite(bound.cost):
        raise NothingFits(is_proven=True)
    best = _tightest(rated, topology, memory, bound)
    if best is None:
        raise NothingFits(is_proven=False)
    return Solution(improve(best, bound.cost, tries), bound)


def _tightest(rated: Rated, topology: Topology, memory: np.ndarray, bound: Bound) -> Placement | None:
    """Returns the placement found under the least cost limit."""
    widest = float(np.maximum.reduceat(rated.total_cost, rated.starts).sum())  # room for all shards on one rank
    low, limit, wider = bound.cost, bound.cost, FIRST
    while (found := _place(rated, topology, memory, limit)) is None:
        if limit > widest:
            return None
        low, limit, wider = limit, limit * wider, wider**WIDER
    high = found.cost
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        closer = _place(rated, topology, memory, middle)
        if closer is None:
            low = middle
        else:
            found, high = closer, min(middle, closer.cost)
    return found


def _place(rated: Rated, topology: Topology, memory: np.ndarray, limit: float) -> Placement | None:
    allowed = allowed_under(rated, limit, memory)
    for part in PARTS:
        relaxed = relax(rated, allowed, part * memory * topology.ranks)
        if not np.isfinite(relaxed.cost):
            return None
        for grain in GRAINS:
            if found := place(rated, topology, memory, limit, relaxed, grain):
                return found
    return None
