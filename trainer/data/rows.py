"""Rows in memory, in blocks of columns: what can be sliced, joined and shuffled without an object per row."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.config.data import DataConfig
from trainer.data.buffers import empty

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

    @staticmethod
    def padding(rows: int, config: DataConfig, lists: Collection[str]) -> "Rows":
        """Returns rows that weigh nothing and have no ids; `lists` names the features in bags."""
        numbers = len(config.dense) + len(config.labels) + 1
        return Rows(
            np.zeros((numbers, rows), np.float32),
            np.full((len(config.sparse) - len(lists), rows), NO_ID, np.int32),
            {name: Bags(np.empty(0, np.int32), np.zeros(rows + 1, np.int64)) for name in lists},
        )

    @staticmethod
    def join(parts: Sequence["Rows"]) -> "Rows":
        """Returns the rows of several parts behind one another."""
        if len(parts) == 1:
            return parts[0]
        return Rows(
            _join([part.numbers for part in parts]),
            _join([part.ids for part in parts]),
            {name: Bags.join([part.bags[name] for part in parts]) for name in parts[0].bags},
        )


def _join(blocks: Sequence[np.ndarray]) -> np.ndarray:
    shape = (len(blocks[0]), sum(block.shape[1] for block in blocks))
    return np.concatenate(blocks, axis=1, out=empty(shape, blocks[0].dtype))
