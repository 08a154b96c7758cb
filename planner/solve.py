"""The search: bound, placement under a bisected limit, improvement."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.bound import Bound, allowed_under, lower_bound, relax
from planner.improve import improve
from planner.placement import Placement, place
from planner.problem import Table, Topology
from planner.rated import Rated, rate

FIRST, WIDER = 1.05, 1.5  # the limit after one under which nothing was placed: times 1.05, then that to the 1.5, ...
BISECTIONS = 10
GRAINS = (0.0, 0.2)
PARTS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5)  # of the memory that choices may take, as shards leave gaps
TRIES = 2000  # to pack tables anew


@dataclass(frozen=True)
class Solution:
    """A placement and what it is compared with.

    Attributes:
        placement: The placement.
        bound: What no plan is better than.
    """

    placement: Placement
    bound: Bound

    @property
    def gap(self) -> float:
        """How much slower the slowest rank is than the bound, relative."""
        return self.placement.cost / self.bound.cost - 1


class NothingFits(Exception):
    """No choice of options fits the memory of the ranks: proven, or not found.

    Attributes:
        is_proven: Whether it is certain.
    """

    def __init__(self, is_proven: bool) -> None:
        super().__init__(f"proven: {is_proven}")
        self.is_proven = is_proven


def solve(tables: Sequence[Table], topology: Topology, slower: float = 0.0, tries: int = TRIES) -> Solution:
    """Returns the best placement found; the same tables and ranks give the same.

    Args:
        tables: The tables.
        topology: The ranks, which are all alike.
        slower: How much slower than the fastest placement found it may be, relative, to take the least memory of the
            fullest rank.
        tries: How often tables may be packed anew to improve a placement.

    Raises:
        NothingFits: There is none.
    """
    memory = np.array([topology.gpu_bytes, topology.host_bytes], dtype=float)
    return solve_within(rate(tables, topology), topology, memory, slower, tries)


def solve_within(
    rated: Rated, topology: Topology, memory: np.ndarray, slower: float = 0.0, tries: int = TRIES
) -> Solution:
    """Returns the best placement of rated options that is found within some memory.

    Args:
        rated: The options.
        topology: The ranks, whose own memory does not count.
        memory: Bytes of a rank, `[2]`.
        slower: As in `solve`.
        tries: As in `solve`.

    Raises:
        NothingFits: There is none.
    """
    fastest = solve_rated(rated, topology, memory, tries)
    if not slower:
        return fastest
    return _leanest(fastest, fastest.placement.cost * (1 + slower), 0 if topology.on_gpu else 1, tries)


def _leanest(fastest: Solution, limit: float, kind: int, tries: int) -> Solution:
    """Returns the solution under a limit of cost whose fullest rank takes the least of a kind of memory."""
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
    """Returns the best placement of rated options that is found.

    Args:
        rated: The options.
        topology: The ranks, which are all alike.
        memory: Bytes of a rank, `[2]`.
        tries: How often tables may be packed anew to improve it.

    Raises:
        NothingFits: There is none.
    """
    bound = lower_bound(rated, memory, topology.ranks)
    if not np.isfinite(bound.cost):
        raise NothingFits(is_proven=True)
    best = _tightest(rated, topology, memory, bound)
    if best is None:
        raise NothingFits(is_proven=False)
    return Solution(improve(best, bound.cost, tries), bound)


def _tightest(rated: Rated, topology: Topology, memory: np.ndarray, bound: Bound) -> Placement | None:
    """Returns the placement under the least limit at which one is found."""
    widest = float(np.maximum.reduceat(rated.total_cost, rated.starts).sum())  # a rank holds all shards of any choice
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
