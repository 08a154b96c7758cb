"""The search for a placement: bound, placement under a bisected limit, improvement.

To improve a placement, ranks above a target give tables away, swap shards, or are repacked with others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchx_recsys.planner.lower_bound import Bound, Rated, allowed_under, lower_bound, relax
from torchx_recsys.planner.placement import Placement, place
from torchx_recsys.planner.tables import (
    CACHED,
    COLUMN_WISE,
    KERNELS,
    KINDS,
    ON_EVERY_RANK,
    TABLE_WISE,
    PlannedTable,
    Table,
)
from torchx_recsys.planner.topology import Topology

FIRST, WIDER = 1.05, 1.5  # growth of a limit under which nothing was placed: 1.05, then 1.05 to the 1.5, ...
BISECTIONS = 10
GRAINS = (0.0, 0.2)
PARTS = (1.0, 0.98, 0.95, 0.9, 0.8, 0.65, 0.5)  # fractions of the memory given to choices, as shards leave gaps
TRIES = 2000  # tries to repack tables
FIRST_STEP, LAST_STEP = 0.02, 1e-5  # how far the target is below the slowest rank, relative
MOST_TABLES = 24  # maximum number of a rank's tables that are tried one by one
PACKED_TABLES = 24  # maximum number of tables repacked at once
PACKINGS = 40  # tries per rank


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
        return self.placement.cost / self.bound.cost - 1 if self.bound.cost else 0.0


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


def planned_table(solution: Solution, number: int, table: Table) -> PlannedTable:
    """Returns the placement of a table in a solution."""
    options, option = solution.placement.rated.options, solution.placement.option[number]
    kernel = int(options.kernel[option])
    return PlannedTable(
        rows=table.rows,
        columns=table.columns,
        kind=KINDS[options.kind[option]],
        kernel=KERNELS[kernel],
        shard_columns=int(options.columns[option]),
        ranks=solution.placement.where[number].tolist(),
        cached=float(options.cached[option]) if kernel == CACHED else None,
    )


def improve(placement: Placement, bound: float, tries: int) -> Placement:
    """Improves a placement in place, until it is at the bound, no change helps, or no tries are left.

    Large neighbourhood search (Shaw 1998) with seeded random choices: equal placements give equal results.

    Args:
        placement: The placement.
        bound: Milliseconds that no placement can beat.
        tries: How often tables may be repacked.
    """
    search = _Search(placement, tries)
    step = FIRST_STEP
    while step > LAST_STEP and placement.cost > bound * (1 + LAST_STEP) and search.tries > 0:
        if not search.reach(max(bound, placement.cost * (1 - step))):
            step /= 2
    return placement


class _Search:
    """Changes to a placement that lower the load of a rank and raise no other rank above a target."""

    def __init__(self, placement: Placement, tries: int) -> None:
        self._placement, self.tries = placement, tries
        self._random = np.random.default_rng(0)
        rated = placement.rated
        self._is_on_every_rank = np.isin(rated.options.kind, ON_EVERY_RANK)  # for each option
        self._reduced = rated.total_cost + rated.total_memory @ placement.prices  # cost plus priced memory
        self._orders = [
            rated.of_table(table).start + np.argsort(self._reduced[rated.of_table(table)], kind="stable")
            for table in range(rated.tables)
        ]

    def reach(self, target: float) -> bool:
        """Brings all ranks below a target; returns whether this succeeded."""
        changes: Sequence[Callable[[int, float], bool]] = (self._move, self._swap, self._pack)
        while (load := self._placement.load).max() > target:
            slowest = int(load.argmax())
            if not any(change(slowest, target) for change in changes):
                return False
        return True

    def _tables_on(self, ranks: Sequence[int]) -> list[list[int]]:
        """Returns the tables not on every rank that have a shard on each of these ranks, most expensive first."""
        placement = self._placement
        tables, where = _shards(placement, np.flatnonzero(~self._is_on_every_rank[placement.option]))
        cost = placement.rated.cost[placement.option]
        here = [np.unique(tables[where == rank]) for rank in ranks]
        return [some[np.argsort(-cost[some], kind="stable")].tolist() for some in here]

    def _tables_on_every_rank(self) -> list[int]:
        """Returns the tables on every rank, most expensive first."""
        placement = self._placement
        tables = np.flatnonzero(self._is_on_every_rank[placement.option])
        return tables[np.argsort(-placement.rated.cost[placement.option[tables]], kind="stable")].tolist()

    def _move(self, slowest: int, target: float) -> bool:
        """Places a table of the slowest rank again, in any of its options."""
        placement = self._placement
        before = placement.load[slowest]
        (alone,) = self._tables_on([slowest])
        for table in [*alone, *self._tables_on_every_rank()][:MOST_TABLES]:
            option, where = placement.take(table)
            if self._put(table, target) and placement.load[slowest] < before:
                return True
            if placement.option[table] >= 0:
                placement.take(table)
            placement.put(table, option, where)
        return False

    def _put(self, table: int, target: float) -> bool:
        for option in self._orders[table]:
            where = self._placement.find(int(option), target)
            if where is not None:
                self._placement.put(table, int(option), where)
                return True
        return False

    def _pack(self, slowest: int, target: float) -> bool:
        """Removes tables from the slowest rank and some others, and places them again, most expensive first."""
        failed = set()
        for _ in range(PACKINGS):
            self.tries -= 1
            order = self._some_order(self._neighbours(slowest))
            if order in failed:  # as most orders are if ranks hold few tables
                continue
            if self._pack_once(order, slowest, target):
                return True
            failed.add(order)
        return False

    def _some_order(self, tables: Sequence[int]) -> tuple[int, ...]:
        """Returns tables from the most to the least expensive, by costs that are off by up to 30 %."""
        cost = self._reduced[self._placement.option[tables]] * self._random.uniform(0.7, 1.3, len(tables))
        return tuple(tables[at] for at in np.argsort(-cost, kind="stable"))

    def _pack_once(self, order: Sequence[int], slowest: int, target: float) -> bool:
        placement = self._placement
        kept, before = placement.state(), placement.load[slowest]
        for table in order:
            placement.take(table)
        if all(self._put(table, target) for table in order) and placement.load[slowest] < before:
            return True
        placement.restore(kept)
        return False

    def _neighbours(self, slowest: int) -> list[int]:
        """Returns tables of the slowest rank and of random ranks."""
        emptiest = np.argsort(self._placement.full(), kind="stable")[: max(8, len(self._placement.load) // 4)]
        ranks = [slowest, *self._random.choice(emptiest, 2), *self._random.choice(len(self._placement.load), 1)]
        found: dict[int, None] = {}
        for tables in self._tables_on(ranks):
            found |= dict.fromkeys(tables[: PACKED_TABLES // len(ranks)])
        return [*found]

    def _swap(self, slowest: int, target: float) -> bool:
        """Swaps a shard of the slowest rank for a cheaper shard: the pair that leaves both ranks the fastest."""
        placement = self._placement
        table, rank = _single_shards(placement)
        option = placement.option[table]
        cost, memory = placement.rated.cost[option], placement.rated.memory[option]
        here = np.flatnonzero(rank == slowest)
        others = np.flatnonzero(~np.isin(table, table[here]) & (rank != slowest))
        best, pair = np.inf, None
        for mine in here:
            less, more = cost[mine] - cost[others], memory[mine] - memory[others]
            there = placement.load[rank[others]] + less
            fits = (less > 0) & (there <= target) & ~np.isin(rank[others], placement.where[table[mine]])
            fits &= (placement.memory[rank[others]] + more <= placement.memory_limit).all(axis=1)
            fits &= (placement.memory[slowest] - more <= placement.memory_limit).all(axis=1)
            after = np.where(fits, np.maximum(placement.load[slowest] - less, there), np.inf)
            if len(after) and after.min() < best:
                best, pair = float(after.min()), (mine, others[int(after.argmin())])
        if pair is None:
            return False
        for one, other in (pair, pair[::-1]):
            chosen, where = placement.take(int(table[one]))
            moved = np.sort(np.where(where == rank[one], rank[other], where))
            placement.put(int(table[one]), chosen, moved)
        return True


def _single_shards(placement: Placement) -> tuple[np.ndarray, np.ndarray]:
    """Returns tables and ranks of all shards that can be on any rank, each `[S]`."""
    kinds = placement.rated.options.kind[placement.option]
    few = placement.rated.options.pieces[placement.option] <= placement.topology.ranks
    return _shards(placement, np.flatnonzero(np.isin(kinds, (TABLE_WISE, COLUMN_WISE)) & few))


def _shards(placement: Placement, tables: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns tables and ranks of all shards of some tables, each `[S]`."""
    where = [placement.where[table] for table in tables]
    return np.repeat(tables, [len(one) for one in where]), np.concatenate([np.empty(0, dtype=int), *where])
