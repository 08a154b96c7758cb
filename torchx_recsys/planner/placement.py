"""Placement of shards on ranks: best fit under a cost limit."""

from dataclasses import dataclass, field

import numpy as np

from torchx_recsys.planner.lower_bound import Rated, Relaxed, cheapest
from torchx_recsys.planner.tables import GRID, OF_COLUMNS, ON_EVERY_RANK, ON_WHOLE_HOSTS, TABLE_COLUMN_WISE, places
from torchx_recsys.planner.topology import Topology


@dataclass
class Placement:
    """An option and ranks for every table, and the load of the ranks.

    Attributes:
        rated: The options.
        topology: The topology of identical ranks.
        memory_limit: Bytes of a rank, `[2]`.
        prices: Milliseconds per byte of memory, `[2]`.
        load: Milliseconds of each rank, `[R]`.
        memory: Bytes taken on each rank, `[R, 2]`.
        option: The option of each table, `[T]`; -1 if not placed yet.
        where: The ranks of each table's shards; for row shards on a whole host, the host's ranks in order.
    """

    rated: Rated
    topology: Topology
    memory_limit: np.ndarray
    prices: np.ndarray
    load: np.ndarray = field(init=False)
    memory: np.ndarray = field(init=False)
    option: np.ndarray = field(init=False)
    where: list[np.ndarray] = field(init=False)

    def __post_init__(self) -> None:
        self.load = np.zeros(self.topology.ranks)
        self.memory = np.zeros((self.topology.ranks, 2))
        self.option = np.full(self.rated.tables, -1)
        self.where = [np.empty(0, dtype=int)] * self.rated.tables

    @property
    def cost(self) -> float:
        """Milliseconds of the slowest rank."""
        return float(self.load.max())

    def room(self, option: int, limit: float, times: int = 1) -> np.ndarray:
        """Returns whether each rank has room for `times` shards of an option, `[R]`."""
        fits = self.load <= limit - times * self.rated.cost[option]
        for kind in (0, 1):
            fits &= self.memory[:, kind] <= self.memory_limit[kind] - times * self.rated.memory[option, kind]
        return fits

    def find(self, option: int, limit: float) -> np.ndarray | None:
        """Returns the ranks where an option fits most tightly under a cost limit; None if the option does not fit."""
        kind, pieces = int(self.rated.options.kind[option]), int(self.rated.options.pieces[option])
        if kind in OF_COLUMNS and pieces > places(kind, self.topology):
            return self._repeated(option, kind, pieces, limit)
        fits = self.room(option, limit)
        if kind in ON_EVERY_RANK:
            return np.arange(self.topology.ranks) if fits.all() else None
        if kind in ON_WHOLE_HOSTS:
            return self._whole_hosts(fits, pieces)
        if kind == TABLE_COLUMN_WISE:
            return self._in_a_host(fits, pieces)
        return _fullest(np.flatnonzero(fits), self.full(), pieces)

    def full(self) -> np.ndarray:
        """Returns how full each rank is, in milliseconds: its load plus its priced memory, `[R]`."""
        return self.load + self.memory @ self.prices

    def _repeated(self, option: int, kind: int, pieces: int, limit: float) -> np.ndarray | None:
        """Returns ranks for more column shards than there are ranks: some ranks take several shards."""
        fits = self.room(option, limit, -(-pieces // places(kind, self.topology)))
        every = np.arange(self.topology.ranks)
        if kind == TABLE_COLUMN_WISE:
            hosts = np.flatnonzero(fits.reshape(self.topology.hosts, -1).all(axis=1))
            return np.resize(every.reshape(self.topology.hosts, -1)[hosts[0]], pieces) if len(hosts) else None
        if not fits.all():
            return None
        return np.resize(every, pieces * self.topology.per_host if kind == GRID else pieces)

    def _whole_hosts(self, fits: np.ndarray, pieces: int) -> np.ndarray | None:
        by_host = (self.topology.hosts, self.topology.per_host)
        hosts = np.flatnonzero(fits.reshape(by_host).all(axis=1))
        chosen = _fullest(hosts, self.full().reshape(by_host).max(axis=1), pieces)
        if chosen is None:
            return None
        return (chosen[:, None] * self.topology.per_host + np.arange(self.topology.per_host)).ravel()

    def _in_a_host(self, fits: np.ndarray, pieces: int) -> np.ndarray | None:
        by_host = (self.topology.hosts, self.topology.per_host)
        full = self.full()
        fullest = -np.sort(-np.where(fits, full, -np.inf).reshape(by_host), axis=1)[:, :pieces].sum(axis=1)
        if not np.isfinite(host := fullest.max()):
            return None
        first = int(np.flatnonzero(fullest == host)[0]) * self.topology.per_host
        here = np.arange(first, first + self.topology.per_host)
        return _fullest(here[fits[here]], full, pieces)

    def put(self, table: int, option: int, where: np.ndarray) -> None:
        """Places a table."""
        self.option[table], self.where[table] = option, where
        self._add(where, option, 1)

    def take(self, table: int) -> tuple[int, np.ndarray]:
        """Removes a table; returns its option and ranks."""
        option, where = int(self.option[table]), self.where[table]
        self._add(where, option, -1)
        self.option[table] = -1
        return option, where

    def state(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
        """Returns which options are placed where, to `restore` them."""
        return self.load.copy(), self.memory.copy(), self.option.copy(), [*self.where]

    def restore(self, state: tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]) -> None:
        """Places all tables as they were."""
        self.load, self.memory, self.option, self.where = state

    def _add(self, where: np.ndarray, option: int, times: int) -> None:
        np.add.at(self.load, where, times * self.rated.cost[option])
        np.add.at(self.memory, where, times * self.rated.memory[option])


def _fullest(candidates: np.ndarray, full: np.ndarray, number: int) -> np.ndarray | None:
    """Returns the `number` fullest candidates, the first on a tie; None if there are fewer."""
    if len(candidates) < number:
        return None
    if number == 1:
        return candidates[[np.argmax(full[candidates])]]
    return np.sort(candidates[np.argsort(-full[candidates], kind="stable")[:number]])


def place(
    rated: Rated, topology: Topology, memory: np.ndarray, limit: float, relaxed: Relaxed, grain: float
) -> Placement | None:
    """Places all tables under a cost limit: on all ranks, on hosts, then single shards, most expensive first.

    A table whose choice fits nowhere takes its next cheapest option that fits.

    Args:
        rated: The options.
        topology: The topology of identical ranks.
        memory: Bytes of a rank, `[2]`.
        limit: Milliseconds of a rank.
        relaxed: The relaxed solution, whose choices are placed.
        grain: How much an option's cost rises if its shard fills a rank: small shards leave smaller gaps.

    Returns:
        The placement; None if a table fits nowhere.
    """
    placement = Placement(rated, topology, memory, relaxed.prices)
    reduced = relaxed.reduced * (1 + grain * rated.cost / limit)
    choices = cheapest(reduced, rated)
    kind = rated.options.kind[choices]
    value = rated.cost[choices] + rated.memory[choices] @ relaxed.prices
    group = np.select([np.isin(kind, ON_EVERY_RANK), np.isin(kind, (*ON_WHOLE_HOSTS, TABLE_COLUMN_WISE))], [0, 1], 2)
    for table in np.lexsort((-value, group)):
        if not _place_one(placement, int(table), int(choices[table]), limit, reduced):
            return None
    return placement


def _place_one(placement: Placement, table: int, choice: int, limit: float, reduced: np.ndarray) -> bool:
    where = placement.find(choice, limit)
    if where is not None:
        placement.put(table, choice, where)
        return True
    options = placement.rated.of_table(table)
    for option in options.start + np.argsort(reduced[options], kind="stable"):
        if not np.isfinite(reduced[option]):
            break
        where = placement.find(int(option), limit)
        if where is not None:
            placement.put(table, int(option), where)
            return True
    return False
