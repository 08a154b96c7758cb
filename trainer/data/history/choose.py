"""Chooses events of a log: those before a time, those that meet conditions, the last of each kind; without a loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trainer.config.conditions import Clause
from trainer.data.history.log import Events
from trainer.data.selection import meets_all
from trainer.rules.plain_types import offsets_of


def first_not_before(times: np.ndarray, first: np.ndarray, stop: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Returns the place of the first event that is not before `now`, `[R]`, by binary search in each range.

    Args:
        times: The times of events, in order within a range.
        first: Where each range begins, `[R]`.
        stop: Where it ends, `[R]`.
        now: The time to find, `[R]`.
    """
    low, high = first.copy(), stop.copy()
    rows = np.flatnonzero(low < high)
    while len(rows):
        middle = (low[rows] + high[rows]) >> 1
        is_before = times[middle] < now[rows]
        low[rows] = np.where(is_before, middle + 1, low[rows])
        high[rows] = np.where(is_before, high[rows], middle)
        rows = rows[low[rows] < high[rows]]
    return low


def counts_before(chosen: np.ndarray) -> np.ndarray:
    """Returns how many events before each, and of all, are chosen, `[E + 1]`."""
    counts = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(chosen, out=counts[1:])
    return counts


def as_lists(values: pa.Array, sizes: np.ndarray) -> pa.LargeListArray:
    """Returns values, one after the other, as lists of some sizes, `[R]`."""
    return pa.LargeListArray.from_arrays(offsets_of(sizes), values)


def slices(column: pa.Array, starts: np.ndarray, sizes: np.ndarray) -> pa.LargeListArray:
    """Returns ranges of a column as lists, `[R]`."""
    if not sizes.any():
        return as_lists(column[:0], sizes)
    # Arrow copies range by range, at 500 million values a second from a length of 256 on. NumPy would need the place of
    # each value: 30 million a second.
    views = pa.LargeListViewArray.from_arrays(pa.array(starts), pa.array(sizes), column)
    return as_lists(views.flatten(), sizes)


def side_by_side(events: Events) -> Events:
    """Returns the events that samples may have, user after user; those of a user of several samples are there once."""
    begins, users = np.unique(events.first, return_inverse=True)
    ends = begins.copy()
    np.maximum.at(ends, users, events.stop)
    columns = {name: slices(column, begins, ends - begins).values for name, column in events.columns.items()}
    first = (np.cumsum(ends - begins) - (ends - begins))[users]
    return Events(columns, first, first + events.stop - events.first)


def meeting(events: Events, clauses: Sequence[Clause]) -> Events:
    """Returns the events that meet conditions."""
    rows = len(next(iter(events.columns.values())))
    meets = meets_all(clauses, lambda name: pa.chunked_array([events.columns[name]]), rows)
    before, stays = counts_before(meets), pa.array(meets)
    columns = {name: column.filter(stays) for name, column in events.columns.items()}
    return Events(columns, before[events.first], before[events.stop])


@dataclass(frozen=True)
class Pieces:
    """Histories put together from ranges of some kinds of events each.

    Attributes:
        kinds: Which events are of the kinds of a range, for each set of kinds that there is, `[E]` each.
        starts: Where each range begins in the events of these sets one after the other, `[R, K]`.
        sizes: How many events it has, `[R, K]`.
    """

    kinds: list[np.ndarray]
    starts: np.ndarray
    sizes: np.ndarray

    def of(self, column: pa.Array) -> pa.LargeListArray:
        """Returns the values of a column as lists, `[R]`."""
        column = pa.concat_arrays([column[:0], *(column.filter(pa.array(some)) for some in self.kinds)])
        return as_lists(slices(column, self.starts.ravel(), self.sizes.ravel()).values, self.sizes.sum(axis=1))


def last_of_each(kinds: np.ndarray, first: np.ndarray, stop: np.ndarray, length: int) -> Pieces:
    """Returns the last events of each kind, all in their order.

    Where the kinds of a sample begin, from the earliest on, its history goes over from events of the kinds before to
    events of one kind more. So it is as many ranges as there are kinds, and each is copied whole.

    Args:
        kinds: The kind of each event, from 0, `[E]`.
        first: Where the events of each sample begin, `[R]`.
        stop: Where they end, `[R]`.
        length: Most events of a kind.
    """
    number = int(kinds.max(initial=0)) + 1
    before = [counts_before(kinds == kind) for kind in range(number)]  # how many of a kind are before each event
    edges = np.empty((len(first), number + 1), np.int64)  # where each kind begins, and the end
    for kind, of_kind in enumerate(before):
        places = np.append(np.flatnonzero(kinds == kind), len(kinds))
        edges[:, kind] = np.minimum(places[np.maximum(of_kind[first], of_kind[stop] - length)], stop)
    edges[:, -1] = stop
    order = np.argsort(edges[:, :-1], axis=1, kind="stable")
    edges[:, :-1] = np.take_along_axis(edges[:, :-1], order, axis=1)
    sets = np.bitwise_or.accumulate(1 << order, axis=1)
    found, starts, sizes, base = list[np.ndarray](), np.zeros_like(sets), np.zeros_like(sets), 0
    for one in np.unique(sets[np.diff(edges, axis=1) > 0]):
        here, members = sets == one, one >> np.arange(number) & 1 > 0
        found.append(members[kinds])
        for of_kind in (of_kind for of_kind, is_member in zip(before, members, strict=True) if is_member):
            starts[here] += of_kind[edges[:, :-1][here]]
            sizes[here] += of_kind[edges[:, 1:][here]] - of_kind[edges[:, :-1][here]]
        starts[here] += base
        base += int(found[-1].sum())
    return Pieces(found, starts, sizes)
