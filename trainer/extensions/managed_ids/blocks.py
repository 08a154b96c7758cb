"""The rows that a managed id can have."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from trainer.core.arrays import mix

# Once all rows are in use, a new id costs a look at all rows of its block; ids of a full block take rows from each
# other while others have room. On streams of ids by Zipf's law, blocks of 256 rows had rows for 0 to 0.3 % fewer
# occurrences than one block for the table, and for 0.1 to 0.2 % fewer in a table with a row for every id.
ROWS_OF_BLOCK, MOST_IN_ONE_BLOCK = 256, 4096


@dataclass(frozen=True)
class Blocks:
    """The rows that an id can have: a hash of the id chooses one of `number` blocks of rows.

    So any process with the rows of whole blocks gives these rows alone, as it would beside all others, and the rows of
    ids do not depend on the number of processes.

    Attributes:
        number: Blocks.
        ends: Rows of the table when it was made, and after each time that it grew. Each block has a part of the rows
            that were added at once: ids stay in their blocks and rows.
    """

    number: int
    ends: tuple[int, ...]

    @classmethod
    def of_table(cls, rows: int) -> Self:
        """Returns the blocks of a new table."""
        return cls(1 if rows <= MOST_IN_ONE_BLOCK else rows // ROWS_OF_BLOCK, (rows,))

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.ends[-1]

    def grown(self, rows: int) -> Self:
        """Returns the blocks of the same table with more rows."""
        return self if rows == self.rows else replace(self, ends=(*self.ends, rows))

    def of_ids(self, ids: np.ndarray) -> np.ndarray:
        """Returns the blocks of ids, `[N]` to `[N]` int64."""
        return (mix(ids) % np.uint64(self.number)).astype(np.int64)

    def first_rows(self, blocks: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the first rows of blocks, `[N]`, among the rows of the new table and among those of each growth."""
        for start, end in zip((0, *self.ends), self.ends, strict=False):
            yield start + blocks * (end - start) // self.number

    def part_of(self, ids: np.ndarray, parts: int) -> np.ndarray:
        """Divides the blocks into equal parts, and returns the part whose rows each id can have, `[N]` to `[N]`."""
        return ((self.of_ids(ids) + 1) * parts - 1) // self.number

    def part(self, part: int, parts: int) -> "PartOfBlocks":
        """Divides the blocks into `parts` equal parts, and returns one of them."""
        return PartOfBlocks(self, range(part * self.number // parts, (part + 1) * self.number // parts))


class PartOfBlocks:
    """Some consecutive blocks, whose rows are counted from 0: those of the new table, then those of each growth.

    Args:
        blocks: The blocks of the table.
        numbers: The numbers of these blocks.

    Attributes:
        rows: The rows, as consecutive rows of the table.
        size: Their number.
        shared: The place of row 0, which is given to no id; None if another part has it.
    """

    def __init__(self, blocks: Blocks, numbers: range) -> None:
        self._blocks, self._numbers = blocks, numbers
        ends = np.array([numbers.start, numbers.stop])
        self.rows = [range(*rows.tolist()) for rows in blocks.first_rows(ends)]
        lengths = [len(rows) for rows in self.rows]
        self.size = sum(lengths)
        self.shared = 0 if numbers and numbers.start == 0 else None
        self._offsets = np.cumsum([0, *lengths[:-1]])  # the place of the first row of each stretch
        self._shifts = np.array([rows.start for rows in self.rows]) - self._offsets

    def __len__(self) -> int:
        """Returns the number of blocks."""
        return len(self._numbers)

    def rows_at(self, places: np.ndarray) -> np.ndarray:
        """Returns the rows of the table at places, `[N]` to `[N]`."""
        return places + self._shifts[np.searchsorted(self._offsets, places, "right") - 1]

    def blocks_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the blocks of ids, counted from the first of this part, `[N]` to `[N]`."""
        return self._blocks.of_ids(ids) - self._numbers.start

    def stretches(self, blocks: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the first places of blocks and those behind their last, `[N]`, of the new table and each growth."""
        numbers = blocks + self._numbers.start
        bounds = zip(self._blocks.first_rows(numbers), self._blocks.first_rows(numbers + 1), strict=True)
        for (first, end), shift in zip(bounds, self._shifts, strict=True):
            yield first - shift, end - shift
