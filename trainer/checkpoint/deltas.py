"""Deltas: checkpoints that hold only those rows of tables and their state that changed since the checkpoint before.

All other tensors are whole in a delta, under their usual names. The changed rows of a local shard of NAME, which begins
at row R and column C, are two tensors:

`delta.NAME@R,C.rows`      their numbers in the shard, ascending, `[N]` int32, or a bit for each row if that is smaller
`delta.NAME@R,C.values`    their values, `[N, columns of the shard]`, or `[N]`
"""

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata

from trainer.checkpoint.io import DirectoryReader, StoredRows

ROWS, VALUES = "rows", "values"
BLOCK_BYTES = 1 << 24  # size of the blocks in which rows are compared
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
NAME = re.compile(rf"delta\.(.+)@(\d+),(\d+)\.({ROWS}|{VALUES})")


def name_of_changes(name: str, offsets: list[int], part: str) -> str:
    """Returns the name of the tensor with numbers or values of changed rows, by the offsets of their local shard."""
    first, column = [*offsets, 0][:2]
    return f"delta.{name}@{first},{column}.{part}"


def packed(rows: Tensor, of: int) -> Tensor:
    """Packs the numbers of rows, `[N]` int64, in as few bytes as possible.

    Args:
        rows: The numbers, ascending.
        of: Number of rows in the shard.
    """
    assert of <= torch.iinfo(torch.int32).max, of
    if 32 * len(rows) <= of:
        return rows.int()
    bits = np.zeros(of, bool)
    bits[rows.numpy()] = True
    return torch.from_numpy(np.packbits(bits))


def unpacked(rows: Tensor) -> Tensor:
    """Reverses `packed`."""
    return torch.from_numpy(np.unpackbits(rows.numpy()).nonzero()[0]) if rows.dtype == torch.uint8 else rows.long()


def rows_differ(before: Tensor, now: Tensor) -> Tensor:
    """Returns whether each row, `[R, C]` or `[R]`, differs in any bit: NaN equals itself, and 0 does not equal -0."""
    if now.dim() == 1:
        dtype = next(one for one in INTEGERS if one.itemsize == now.element_size())
        return before.view(dtype) != now.view(dtype)
    # Bytes are compared as integers, the widest that divide a row: fewer comparisons are faster.
    places = [size * one.element_size() for one in (before, now) for size in (one.storage_offset(), *one.stride()[:-1])]
    sizes = [now.shape[1] * now.element_size(), *places]
    dtype = next(one for one in INTEGERS if all(size % one.itemsize == 0 for size in sizes))
    return (before.view(dtype) != now.view(dtype)).any(1)


def is_of_changes(name: str) -> bool:
    """Returns whether a tensor in a checkpoint holds numbers or values of changed rows."""
    return NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class _Shard:
    """A local shard with changed rows: the name of its tensor, and its offsets there."""

    name: str
    first: int
    column: int

    def tensor(self, part: str) -> str:
        return name_of_changes(self.name, [self.first, self.column], part)


class ChangedRows:
    """Reads the changed rows of a delta.

    Args:
        reader: Reads the delta's files.
        metadata: DCP's metadata of the delta's directory.
    """

    def __init__(self, reader: DirectoryReader, metadata: Metadata) -> None:
        self._stored = StoredRows(reader, metadata)
        self._numbers: dict[_Shard, Tensor] = {}
        self._shards: dict[str, list[_Shard]] = defaultdict(list)
        for found in filter(None, map(NAME.fullmatch, self._stored.entries)):
            if found[4] == ROWS:
                self._shards[found[1]].append(_Shard(found[1], int(found[2]), int(found[3])))

    @torch.no_grad()
    def apply(self, name: str, target: Tensor, first: int, column: int) -> None:
        """Overwrites the changed rows of a part of a tensor.

        Args:
            name: The tensor.
            target: The part to overwrite, `[R, C]` or `[R]`.
            first: First row of the part in the tensor.
            column: First column of the part in the tensor.
        """
        for shard in self._shards.get(name, ()):
            numbers = self._numbers_of(shard)
            begin, end = torch.searchsorted(numbers, torch.tensor([first, first + len(target)])).tolist()
            if begin == end:
                continue
            places = (numbers[begin:end] - first).to(target.device)
            values = self._read(shard.tensor(VALUES), begin, end)
            if target.dim() == 1:
                target.index_copy_(0, places, values.to(target.device))
                continue
            left = max(column, shard.column)
            right = min(column + target.shape[1], shard.column + values.shape[1])
            if left < right:
                found = values[:, left - shard.column : right - shard.column]
                target[:, left - column : right - column].index_copy_(0, places, found.to(target.device))

    def _numbers_of(self, shard: _Shard) -> Tensor:
        """Returns the numbers of a local shard's changed rows, counted in the whole tensor."""
        if shard not in self._numbers:
            name = shard.tensor(ROWS)
            self._numbers[shard] = unpacked(self._read(name, 0, self._stored.entries[name].size[0])) + shard.first
        return self._numbers[shard]

    def _read(self, name: str, start: int, stop: int) -> Tensor:
        (whole,) = self._stored.entries[name].chunks
        return self._stored.read(name, whole, start, stop)
