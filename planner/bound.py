"""A bound that no plan can beat, by Lagrangian relaxation, and the prices of memory.

The ranks are identical. So the slowest rank takes at least the mean time, and all shards together take at most the
memory of all ranks. At any price of memory, the sum over tables of the least cost plus priced memory bounds the total
cost from below; the best prices give the value of the linear program (Geoffrion 1974).

Not by HiGHS (scipy.optimize.linprog): its values are the same to 2e-15, but a bound takes 7 to 34 ms on 200 tables x 16
ranks and 50 to 220 on 1,000 x 1,024, here 0.3 to 2 and 1. A search asks for hundreds. The tests compare the two.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from planner.rated import Rated

STEPS = 48  # bisection steps, to the last bits of a price
BEYOND = 1e12  # times the mean price: there, only memory counts
CLOSE = 1e-7  # relative tolerance


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
    value = problem.value(prices)
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

    def value(self, prices: np.ndarray) -> float:
        """Returns the bound at some prices."""
        reduced = self._cost + self._rated.total_memory @ prices
        return float(np.minimum.reduceat(reduced, self._rated.starts).sum() - prices @ self._capacity)

    def used(self, prices: np.ndarray) -> np.ndarray:
        """Returns the bytes that the cheapest options take at some prices, `[2]`."""
        chosen = cheapest(self._cost + self._rated.total_memory @ prices, self._rated)
        return self._rated.total_memory[chosen].sum(axis=0)

    def best_prices(self) -> np.ndarray:
        """Returns the prices that maximize the bound."""
        prices = np.zeros(2)
        if (self.used(prices) <= self._capacity).all():
            return prices
        for memory in (0, 1):  # one price is enough if one kind of memory is scarce
            prices = np.zeros(2)
            prices[memory] = self._price(prices, memory)
            if (self.used(prices) <= self._capacity).all():
                return prices
        return self._both_prices()

    def _both_prices(self) -> np.ndarray:
        """Returns the prices that maximize the concave bound if both kinds of memory are scarce."""
        prices = np.zeros(2)

        def value(price: float) -> float:
            prices[1] = price
            prices[0] = self._price(prices, 0)
            return self.value(prices)

        high = self._unit(1) / BEYOND
        while value(8 * high) > value(high) and value(high) <= self.most():
            high *= 8
        low, high = 0.0, 8 * high
        for _ in range(STEPS):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (left, high) if value(left) < value(right) else (low, right)
        value((low + high) / 2)
        return prices

    def _price(self, prices: np.ndarray, memory: int) -> float:
        """Returns the least price at which one kind of memory suffices, given the price of the other."""

        def suffices(price: float) -> bool:
            prices[memory] = price
            return bool(self.used(prices)[memory] <= self._capacity[memory])

        return _least(suffices, self._unit(memory))

    def _unit(self, memory: int) -> float:
        """Returns a price of the right magnitude."""
        finite = np.isfinite(self._cost)
        return float(self._cost[finite].mean() / max(1.0, self._rated.total_memory[finite, memory].mean()))


def _least(suffices: Callable[[float], bool], unit: float) -> float:
    """Returns the least price that suffices, by bisection; a price beyond the range if none does."""
    if suffices(0.0):
        return 0.0
    low, high = 0.0, unit
    while not suffices(high):
        low, high = high, 8 * high
        if high > BEYOND * unit:
            return high
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def cheapest(reduced: np.ndarray, rated: Rated) -> np.ndarray:
    """Returns the number of each table's cheapest option, `[T]`; the first option on a tie."""
    least = np.minimum.reduceat(reduced, rated.starts)
    found = np.flatnonzero(reduced == least[rated.options.table])
    return found[np.searchsorted(rated.options.table[found], np.arange(rated.tables))]


@dataclass(frozen=True)
class Bound:
    """A cost that no plan can beat.

    Attributes:
        cost: Milliseconds of the slowest rank; infinite if nothing fits.
        prices: Milliseconds per byte of memory, `[2]`.
    """

    cost: float
    prices: np.ndarray


def allowed_under(rated: Rated, limit: float, memory: np.ndarray) -> np.ndarray:
    """Returns whether a shard of each option alone stays within a cost limit and a rank's memory, `[O]`."""
    return (rated.cost <= limit) & (rated.memory <= memory).all(axis=1)


def lower_bound(rated: Rated, memory: np.ndarray, ranks: int) -> Bound:
    """Returns the least cost of the slowest rank; a plan of that cost has no shard that alone costs more.

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
