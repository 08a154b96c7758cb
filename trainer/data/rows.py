"""Rows in memory, as blocks of columns that can be sliced, joined and shuffled.

Not as Arrow tables, which move rows column by column: a step of a lane is small, and the calls would cost more than the
moving.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.config.data import DataConfig
from trainer.data.buffers import empty

NO_ID = -1  # stands in `Rows.ids` where a row has no id


@dataclass(frozen=True)
class Bags:
    """The ids of a feature with a list of them per row.

    Attributes:
        values: The ids of all rows, one row after the other, `[N]` int32.
        offsets: Where the ids of each row begin and those of the last one end, `[R + 1]` int64.
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
        # The place of every id taken, in one array: a loop over rows would be a Python object per row.
        source = np.repeat(self.offsets[:-1][order] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Bags(self.values[source], offsets)

    @staticmethod
    def join(parts: Sequence["Bags"]) -> "Bags":
        """Returns the rows of several parts, one part after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        return Bags(np.concatenate([part.flat for part in parts]), offsets_of(lengths))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Returns where each row begins, and where the last one ends, `[R + 1]`."""
    return np.concatenate([[0], np.cumsum(lengths)])


@dataclass(frozen=True)
class Rows:
    """`R` rows of a data set, all columns of a kind in one block.

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
        """Returns rows of weight 0 without ids; `lists` names the features in bags."""
        numbers = len(config.dense) + len(config.labels) + 1
        return Rows(
            np.zeros((numbers, rows), np.float32),
            np.full((len(config.sparse) - len(lists), rows), NO_ID, np.int32),
            {name: Bags(np.empty(0, np.int32), np.zeros(rows + 1, np.int64)) for name in lists},
        )

    @staticmethod
    def join(parts: Sequence["Rows"]) -> "Rows":
        """Returns the rows of several parts, one part after the other."""
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
