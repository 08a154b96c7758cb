"""Rows in memory, in blocks of columns: what can be sliced, joined and shuffled without an object per row."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NO_ID = -1  # stands in `Rows.ids` where a row has no id


@dataclass(frozen=True)
class Bags:
    """The ids of one feature that has a list of them per row.

    Attributes:
        values: The ids of all rows behind one another, `[N]` int32.
        offsets: Where each row's ids begin and the last one's end, `[R + 1]` int64.
    """

    values: np.ndarray
    offsets: np.ndarray

    @property
    def flat(self) -> np.ndarray:
        """The ids of these rows and no others."""
        return self.values[self.offsets[0] : self.offsets[-1]]

    @property
    def lengths(self) -> np.ndarray:
        """Ids of each row, `[R]`."""
        return np.diff(self.offsets)

    def slice(self, start: int, stop: int) -> "Bags":
        """Returns the rows in `[start, stop)` without copying."""
        return Bags(self.values, self.offsets[start : stop + 1])

    def take(self, order: np.ndarray) -> "Bags":
        """Returns the rows at the positions `order`, `[R']`."""
        lengths = self.lengths[order]
        offsets = offsets_of(lengths)
        source = np.repeat(self.offsets[:-1][order] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Bags(self.values[source], offsets)

    def pad(self, rows: int) -> "Bags":
        """Returns these rows and as many empty ones behind them."""
        return Bags(self.values, np.concatenate([self.offsets, np.full(rows, self.offsets[-1])]))

    @staticmethod
    def join(parts: Sequence["Bags"]) -> "Bags":
        """Returns the rows of several parts behind one another."""
        lengths = np.concatenate([part.lengths for part in parts])
        return Bags(np.concatenate([part.flat for part in parts]), offsets_of(lengths))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Returns where each row begins, and where the last one ends, `[R + 1]`."""
    return np.concatenate([[0], np.cumsum(lengths)])


@dataclass(frozen=True)
class Rows:
    """`R` rows of a data set. Columns of one kind form one block, so that moving rows costs few calls.

    Attributes:
        numbers: Dense features, labels and, last, the weight, `[C, R]` float32.
        ids: Features with at most one id per row, `[S, R]` int32, NO_ID where there is none.
        bags: Features with a list of ids per row, by name.
    """

    numbers: np.ndarray
    ids: np.ndarray
    bags: dict[str, Bags]

    def __len__(self) -> int:
        return self.numbers.shape[1]

    def slice(self, start: int, stop: int) -> "Rows":
        """Returns the rows in `[start, stop)` without copying."""
        bags = {name: bag.slice(start, stop) for name, bag in self.bags.items()}
        return Rows(self.numbers[:, start:stop], self.ids[:, start:stop], bags)

    def take(self, order: np.ndarray) -> "Rows":
        """Returns the rows at the positions `order`, `[R']`."""
        bags = {name: bag.take(order) for name, bag in self.bags.items()}
        return Rows(_take(self.numbers, order), _take(self.ids, order), bags)

    def pad(self, rows: int) -> "Rows":
        """Returns these rows and as many behind them that weigh nothing and have no ids."""
        if rows == 0:
            return self
        bags = {name: bag.pad(rows) for name, bag in self.bags.items()}
        numbers = np.pad(self.numbers, ((0, 0), (0, rows)))
        return Rows(numbers, np.pad(self.ids, ((0, 0), (0, rows)), constant_values=NO_ID), bags)

    @staticmethod
    def join(parts: Sequence["Rows"]) -> "Rows":
        """Returns the rows of several parts behind one another."""
        if len(parts) == 1:
            return parts[0]
        return Rows(
            np.concatenate([part.numbers for part in parts], axis=1),
            np.concatenate([part.ids for part in parts], axis=1),
            {name: Bags.join([part.bags[name] for part in parts]) for name in parts[0].bags},
        )


def _take(block: np.ndarray, order: np.ndarray) -> np.ndarray:
    taken = np.empty((len(block), len(order)), block.dtype)
    for source, target in zip(block, taken, strict=True):
        np.take(source, order, out=target, mode="wrap")  # "raise", the default, would buffer the output
    return taken
