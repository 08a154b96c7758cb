"""Costs of options, and a lower bound on the cost of any plan, by Lagrangian relaxation with prices of memory.

The ranks are identical. So the slowest rank takes at least the mean time, and all shards together take at most the
memory of all ranks. At any price of memory, the sum over tables of the least cost plus priced memory bounds the total
cost from below; the best prices give the value of the linear program (Geoffrion 1974).

HiGHS (scipy.optimize.linprog) finds the same values to 2e-15, but takes 7 to 34 ms for a bound on 200 tables x 16 ranks
and 50 to 220 on 1,000 x 1,024, here 0.1 to 3 and 1. A search computes hundreds of bounds. The tests compare the two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from torchx_recsys.planner.shard_memory import shard_memory, sum_of_shards
from torchx_recsys.planner.step_time import costs
from torchx_recsys.planner.tables import Options, Table, all_options, has_options
from torchx_recsys.planner.topology import Topology

STEPS = 200  # limit on the steps of a search, which usually takes 5 to 20
CREST = 1e-15  # relative tolerance of the height of a crest
NUDGE = 2.0**-50  # first increment of a price, relative; increments double until the price suffices
BEYOND = 1e12  # multiple of the mean price at which only memory counts
CLOSE = 1e-7  # relative tolerance


@dataclass(frozen=True)
class Rated:
    """Options with the cost and memory of one shard, and of all shards together.

    Attributes:
        options: The options.
        cost: Milliseconds of a shard, `[O]`.
        memory: Bytes of the largest shard, on the GPU and on the host, `[O, 2]`.
        total_cost: Milliseconds of all shards.
        total_memory: Bytes of all shards.
        starts: Index of the first option of each table, `[T]`.
    """

    options: Options
    cost: np.ndarray
    memory: np.ndarray
    total_cost: np.ndarray
    total_memory: np.ndarray
    starts: np.ndarray

    @property
    def tables(self) -> int:
        """Number of tables."""
        return len(self.starts)

    def of_table(self, table: int) -> slice:
        """Returns the options of a table."""
        stop = self.starts[table + 1] if table + 1 < self.tables else len(self.options)
        return slice(int(self.starts[table]), int(stop))


def rate(
    tables: Sequence[Table], topology: Topology, memory_of_shard: Callable[..., np.ndarray] = shard_memory
) -> Rated:
    """Returns the options of tables with their costs.

    Args:
        tables: The tables.
        topology: The topology of identical ranks.
        memory_of_shard: Returns the memory of shards; unset for the most that shards take.

    Raises:
        ValueError: A table has no option.
    """
    for table in tables:
        if not has_options(table, topology):
            raise ValueError(f"table '{table.name}' cannot be sharded as allowed")
    options = all_options(tables, topology)
    cost = costs(options, tables, topology).sum(axis=1)
    memory = memory_of_shard(options, tables, topology)
    starts = np.searchsorted(options.table, np.arange(len(tables)))
    total_memory = sum_of_shards(options, tables, topology, memory_of_shard)
    return Rated(options, cost, memory, cost * options.shards, total_memory, starts)


@dataclass(frozen=True)
class Relaxed:
    """The solution of the relaxed problem.

    Attributes:
        cost: Least milliseconds of all ranks together under any choice; infinite if nothing fits.
        prices: Milliseconds per byte of GPU and of host memory, `[2]`.
        reduced: Cost of each option plus its priced memory, `[O]`; infinite for a barred option.
    """

    cost: float
    prices: np.ndarray
    reduced: np.ndarray


def relax(rated: Rated, allowed: np.ndarray, capacity: np.ndarray) -> Relaxed:
    """Returns the least cost of the relaxed problem.

    Args:
        rated: The options.
        allowed: Whether each option is allowed, `[O]`.
        capacity: Bytes of all ranks together, `[2]`.
    """
    nothing = Relaxed(np.inf, np.zeros(2), np.full(len(allowed), np.inf))
    cost = np.where(allowed, rated.total_cost, np.inf)
    if not np.isfinite(np.minimum.reduceat(cost, rated.starts)).all():
        return nothing
    problem = _Problem(rated, cost, capacity)
    if not problem.fits():
        return nothing
    prices = problem.best_prices()
    value, _ = problem.at(prices)
    if value > problem.most():  # no choice of options costs this much, so none fits
        return nothing
    return Relaxed(value, prices, cost + rated.total_memory @ prices)


class _Problem:
    """The relaxed problem for some allowed options."""

    def __init__(self, rated: Rated, cost: np.ndarray, capacity: np.ndarray) -> None:
        self._rated, self._cost, self._capacity = rated, cost, capacity
        self._memory = np.where(np.isfinite(cost)[:, None], rated.total_memory, np.inf)

    def fits(self) -> bool:
        """Returns whether each kind of memory holds the tables if every table takes its least of it."""
        least = np.minimum.reduceat(self._memory, self._rated.starts, axis=0).sum(axis=0)
        return bool((least <= self._capacity).all())

    def most(self) -> float:
        """Returns the cost of the most expensive options."""
        return float(np.maximum.reduceat(np.where(np.isfinite(self._cost), self._cost, 0), self._rated.starts).sum())

    def at(self, prices: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the bound at some prices, and the bytes that the cheapest options take there, `[2]`."""
        reduced = self._cost + self._rated.total_memory @ prices
        chosen = cheapest(reduced, self._rated)
        return float(reduced[chosen].sum() - prices @ self._capacity), self._rated.total_memory[chosen].sum(axis=0)

    def suffices(self, prices: np.ndarray) -> bool:
        """Returns whether the memory holds what the cheapest options take at some prices."""
        return bool((self.at(prices)[1] <= self._capacity).all())

    def best_prices(self) -> np.ndarray:
        """Returns the prices that maximize the bound."""
        prices = np.zeros(2)
        if self.suffices(prices):
            return prices
        for memory in (0, 1):  # a single price suffices if one kind of memory is scarce
            prices = np.zeros(2)
            self._set_price(prices, memory)
            if self.suffices(prices):
                return prices
        return self._both_prices()

    def _both_prices(self) -> np.ndarray:
        """Returns the prices that maximize the concave bound if both kinds of memory are scarce."""
        prices = np.zeros(2)

        def bound(price: float) -> Line:
            prices[1] = price
            slope = self._set_price(prices, 0)[1] - self._capacity[1]
            return Line(self.at(prices)[0] - slope * price, slope)

        _crest(bound, self._unit(1), self.most())
        return prices

    def _set_price(self, prices: np.ndarray, memory: int) -> np.ndarray:
        """Sets the least price at which one kind of memory suffices, given the price of the other.

        Returns:
            The bytes that the cheapest options take there, `[2]`: of equally cheap ones a mixture that fills it.
        """
        capacity = self._capacity[memory]
        taken: dict[Line, np.ndarray] = {}

        def cost(price: float) -> Line:
            prices[memory] = price
            value, used = self.at(prices)
            slope = used[memory] - capacity
            line = Line(value - slope * price, slope)
            taken[line] = used
            return line

        rising, falling = _crest(cost, self._unit(memory), np.inf)
        # The two lines meet a rounding error before the price that suffices; options of equal cost make them meet at 0.
        nudge = NUDGE * (prices[memory] or self._unit(memory))
        while self.at(prices)[1][memory] > capacity >= taken[falling][memory]:
            prices[memory] += nudge
            nudge *= 2
        share = falling.slope / (falling.slope - rising.slope) if falling.slope < 0 < rising.slope else 0.0
        return share * taken[rising] + (1 - share) * taken[falling]

    def _unit(self, memory: int) -> float:
        """Returns a price of the right magnitude."""
        finite = np.isfinite(self._cost)
        return float(self._cost[finite].mean() / max(1.0, self._rated.total_memory[finite, memory].mean()))


class Line(NamedTuple):
    """A line that touches a concave function: `at_zero + slope * price`."""

    at_zero: float
    slope: float

    def at(self, price: float) -> float:
        """Returns its height at a price."""
        return self.at_zero + self.slope * price


def _crest(tangent: Callable[[float], Line], unit: float, most: float) -> tuple[Line, Line]:
    """Finds the least price, from 0 on, that maximizes a concave, piecewise linear function.

    Each pair of tangents meets above a piece that is not known yet, or at the crest: a handful of steps, where a
    bisection to the last bits takes 50.

    Args:
        tangent: Returns a tangent at a price, at a kink any of them. Called for the last time at the crest.
        unit: A price of the right magnitude.
        most: Height at which the search may end, as only a function without a crest reaches it.

    Returns:
        The tangents on both sides of the crest; the second twice if it is at 0, or if there is none.
    """
    low, price = tangent(0.0), unit
    if low.slope <= 0:
        return low, low
    while (high := tangent(price)).slope > 0:
        if price > BEYOND * unit or high.at(price) > most:
            return high, high
        low, price = high, 8 * price
    for _ in range(STEPS):
        price = max(0.0, (high.at_zero - low.at_zero) / (low.slope - high.slope))
        found = tangent(price)
        if found.at(price) >= low.at(price) - CREST * abs(low.at(price)):
            break
        low, high = (found, high) if found.slope > 0 else (low, found)
    return low, high


def cheapest(reduced: np.ndarray, rated: Rated) -> np.ndarray:
    """Returns the number of each table's cheapest option, `[T]`; the first option on a tie."""
    least = np.minimum.reduceat(reduced, rated.starts)
    found = np.flatnonzero(reduced == least[rated.options.table])
    return found[np.searchsorted(rated.options.table[found], np.arange(rated.tables))]


@dataclass(frozen=True)
class Bound:
    """A lower bound on the cost of any plan.

    Attributes:
        cost: Milliseconds of the slowest rank; infinite if nothing fits.
        prices: Milliseconds per byte of memory, `[2]`.
    """

    cost: float
    prices: np.ndarray


def allowed_under(rated: Rated, limit: float, memory: np.ndarray) -> np.ndarray:
    """Returns whether a single shard of each option stays within a cost limit and a rank's memory, `[O]`."""
    return (rated.cost <= limit) & (rated.memory <= memory).all(axis=1)


def lower_bound(rated: Rated, memory: np.ndarray, ranks: int) -> Bound:
    """Returns a lower bound on the cost of the slowest rank: a plan of that cost has no shard that costs more.

    Args:
        rated: The options.
        memory: Bytes of a rank, `[2]`.
        ranks: Number of ranks.
    """

    def mean(limit: float) -> Relaxed:
        return relax(rated, allowed_under(rated, limit, memory), memory * ranks)

    best = mean(np.inf)
    low = best.cost / ranks
    if not np.isfinite(low) or mean(low).cost / ranks <= low:
        return Bound(low, best.prices)
    high = 2 * low
    while (best := mean(high)).cost / ranks > high:
        low, high = high, 2 * high
    while high - low > CLOSE * low:
        middle = (low + high) / 2
        found = mean(middle)
        if found.cost / ranks > middle:
            low = middle
        else:
            high, best = middle, found
    return Bound(low, best.prices)
