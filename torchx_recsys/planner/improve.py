"""Improvement of a placement: ranks above a target give tables away, swap shards, or are repacked with others."""

from collections.abc import Callable, Sequence

import numpy as np

from torchx_recsys.planner.options import COLUMN_WISE, ON_EVERY_RANK, TABLE_WISE
from torchx_recsys.planner.placement import Placement

FIRST_STEP, LAST_STEP = 0.02, 1e-5  # how far the target is below the slowest rank, relative
MOST_TABLES = 24  # tables of a rank that are tried one by one
PACKED_TABLES = 24  # tables that are repacked at once
PACKINGS = 40  # tries per rank


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
        self._is_on_every_rank = np.isin(rated.options.kind, ON_EVERY_RANK)  # by option
        self._reduced = rated.total_cost + rated.total_memory @ placement.prices  # with memory at its price
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
            if order in failed:  # as most are where ranks hold few tables
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
