"""Rows in memory: blocks of columns that can be sliced, joined and shuffled, in buffers that are reused.

Why not Arrow tables: they move rows column by column. A step of a lane is small, so the calls would cost more than the
move. Only lists of ids are Arrow arrays, because NumPy has no lists.
"""

import ctypes
import math
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.rules.id_lists import weighted_type

# Why a pool: windows and batches need blocks of nearly the same size again and again, but allocators return them to the
# system. NumPy's malloc returns large blocks at once. Arrow's mimalloc returns blocks after 10 ms without use, which is
# nearly always, because training comes between. The system then clears new blocks page by page, which takes longer than
# filling them. Without the pool the loader took up to twice as long.
LARGE_BYTES = 1 << 16  # smallest size to pool; malloc keeps smaller blocks anyway

# Number of elements between the end of a column and the beginning of the next. Columns of whole row groups often have a
# power of 2 of bytes. Without the gap their addresses map to the same few places of the processor's cache, and
# transposing a batch took twice as long.
APART = 16

# The free blocks by size. Sizes are powers of 2, so that arrays of nearly the same size share blocks; bytes that are
# never written take no memory. Only atomic operations are used, because threads make and release arrays concurrently.
unused_blocks: dict[int, list[np.ndarray]] = {}


def empty(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Returns an array to be filled. Its memory is reused once nothing refers to the array or its views.

    The pool never keeps more blocks of a size than were in use at the same time.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, dtype)
    power = 1 << (size - 1).bit_length()
    unused = unused_blocks.setdefault(power, [])
    try:
        block = unused.pop()
    except IndexError:
        block = np.empty(power, np.uint8)
    # The release hangs on a ctypes object, because all views refer to it, and so do tensors made from them. An array
    # itself would not do: the base of a view is the owner of the memory, not the array that the view was made from.
    owner = (ctypes.c_byte * block.size).from_buffer(block.data)
    weakref.finalize(owner, unused.append, block)
    return np.ndarray(shape, dtype, memoryview(owner))


def empty_block(columns: int, rows: int, dtype: np.typing.DTypeLike) -> np.ndarray:
    """Returns a block of columns to be filled, `[columns, rows]`, in reused memory like `empty`."""
    return empty((columns, rows + APART), dtype)[:, :rows]


NO_ID = -1  # marks a row without an id in `Rows.ids`
NO_ITEM = np.iinfo(np.int64).min  # marks a row without an item, or with fewer hard negatives than other rows


def id_dtype(config: DataConfig) -> np.dtype:
    """Returns the type of ids in memory: int32 for rows of tables, int64 for managed ids, which get rows later."""
    return np.dtype(np.int64 if config.managed_tables else np.int32)


@dataclass(frozen=True)
class Rows:
    """`R` rows of a data set; all columns of a kind are a block.

    Attributes:
        numbers: Dense features, labels and, as the last column, the weight, `[C, R]` float32. A vector has several
            columns (`DataConfig.dense_columns`).
        ids: Features with at most one id per row, `[S, R]`; NO_ID without an id.
        bags: Features with a list of ids per row, by name, `[R]` lists each: of ids, or of ids with weights.
        groups: Columns that group rows, `[G, R]` int64.
        hard_negatives: Items that are negatives of the row, `[H, R]` int64; NO_ITEM if it has fewer.
        costs: Columns with costs of rows, `[C, R]` float32.
    """

    numbers: np.ndarray
    ids: np.ndarray
    bags: dict[str, pa.LargeListArray]
    groups: np.ndarray
    hard_negatives: np.ndarray
    costs: np.ndarray

    def __len__(self) -> int:
        return self.numbers.shape[1]

    @property
    def _blocks(self) -> tuple[np.ndarray, ...]:
        return self.numbers, self.ids, self.groups, self.hard_negatives, self.costs

    def slice(self, start: int, stop: int) -> "Rows":
        """Returns the rows in `[start, stop)`, without a copy."""
        bags = {name: bag.slice(start, stop - start) for name, bag in self.bags.items()}
        numbers, ids, *others = [block[:, start:stop] for block in self._blocks]
        return Rows(numbers, ids, bags, *others)

    def take(self, places: np.ndarray) -> "Rows":
        """Returns the rows at some places, in the order of the places."""
        return Rows.gather([self], places)

    @staticmethod
    def gather(parts: Sequence["Rows"], places: np.ndarray) -> "Rows":
        """Returns the rows at some places of several parts, which follow one another."""
        joined, order = join_bags([part.bags for part in parts]), pa.array(places)
        blocks = zip(*(part._blocks for part in parts), strict=True)
        numbers, ids, *others = (_gather_blocks(of_parts, places) for of_parts in blocks)
        return Rows(numbers, ids, {name: bag.take(order) for name, bag in joined.items()}, *others)

    def fill(self, data: DataConfig, rows: "Rows", columns: DataConfig) -> None:
        """Copies dense features, single ids and groups of other rows into the first of these rows.

        Args:
            data: The columns of these rows.
            rows: The other rows, as many or fewer.
            columns: Their columns.
        """
        there = data.dense_columns
        for name, places in columns.dense_columns.items():
            self.numbers[there[name], : len(rows)] = rows.numbers[places]
        for block, names, values, present in (
            (self.ids, _single(data, self), rows.ids, _single(columns, rows)),
            (self.groups, data.groups, rows.groups, columns.groups),
        ):
            for name, column in zip(present, values, strict=True):
                block[names.index(name), : len(rows)] = column

    @staticmethod
    def padding(rows: int, config: DataConfig, lists: Collection[str]) -> "Rows":
        """Returns rows of weight and cost 0 without ids; `lists` names the features in bags."""
        numbers = config.dense_width + len(config.labels) + 1
        return Rows(
            np.zeros((numbers, rows), np.float32),
            np.full((len(config.sparse) - len(lists), rows), NO_ID, id_dtype(config)),
            {name: pa.array([[]] * rows, _list_type(config, name)) for name in lists},
            np.zeros((len(config.groups), rows), np.int64),
            np.full((config.catalogue.hard, rows), NO_ITEM, np.int64),
            np.zeros((len(config.costs), rows), np.float32),
        )

    @staticmethod
    def join(parts: Sequence["Rows"]) -> "Rows":
        """Joins several parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return Rows(
            join_blocks([part.numbers for part in parts]),
            join_blocks([part.ids for part in parts]),
            join_bags([part.bags for part in parts]),
            join_blocks([part.groups for part in parts]),
            join_blocks([part.hard_negatives for part in parts]),
            join_blocks([part.costs for part in parts]),
        )


def _single(config: DataConfig, rows: Rows) -> list[str]:
    return [name for name in config.sparse if name not in rows.bags]


def _list_type(config: DataConfig, name: str) -> pa.DataType:
    ids = pa.from_numpy_dtype(id_dtype(config))
    return pa.large_list(weighted_type(ids) if config.sparse[name].weights else ids)


def take(column: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """Writes the values of a column at some places, `[R]`; all must be within the column."""
    column.take(places, out=out, mode="wrap")  # the default, "raise", would buffer the output


def _gather_blocks(blocks: Sequence[np.ndarray], places: np.ndarray) -> np.ndarray:
    # Column by column, because a joined column stays in the cache, and because NumPy would first copy a slice of a
    # block to make it contiguous.
    taken = empty_block(len(blocks[0]), len(places), blocks[0].dtype)
    for *columns, out in zip(*blocks, taken, strict=True):
        take(np.concatenate(columns) if len(columns) > 1 else columns[0], places, out)
    return taken


def join_blocks(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Joins blocks of columns, `[C, R]` each, along their rows."""
    shape = (len(blocks[0]), sum(block.shape[1] for block in blocks))
    return np.concatenate(blocks, axis=1, out=empty(shape, blocks[0].dtype))


def join_bags(bags: Sequence[dict[str, pa.LargeListArray]]) -> dict[str, pa.LargeListArray]:
    """Joins bags of the same features, `[R]` lists each, along their rows."""
    return {name: pa.concat_arrays([part[name] for part in bags]) for name in bags[0]}
