"""One pass over the row groups of a split: tallies of all values, a sample of rows, hashes of some rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from apps.check_data.duplicates import bits_of, chosen_rows, hash_rows, key_columns
from apps.check_data.kinds import COMPUTED, Kind, computed
from apps.check_data.splits import Split
from apps.check_data.tally import Tally, joined
from trainer.config.data import DataConfig
from trainer.data.dataset import RowGroup
from trainer.data.plain_types import plain_array
from trainer.data.readers.base import Column
from trainer.data.row_groups import RowGroupReader


@dataclass(frozen=True)
class Measured:
    """What was read of a split.

    Attributes:
        split: The split.
        tallies: By column, of each file, all rows that were read.
        sample: Rows of them, in the types of `kinds.COMPUTED`.
        file_of: The file of each row of the sample, `[R]`.
        hashes: Hashes of some rows, the same ones in every split.
        rows_read: Rows that were read.
    """

    split: Split
    tallies: Mapping[str, list[Tally]]
    sample: pa.Table
    file_of: np.ndarray
    hashes: np.ndarray
    rows_read: int

    @property
    def name(self) -> str:
        """Name of the split."""
        return self.split.name

    @property
    def is_whole(self) -> bool:
        """Whether the sample is every row."""
        return self.sample.num_rows == self.split.files.rows

    @property
    def is_all_read(self) -> bool:
        """Whether every row was read, so that counts and extremes are those of all."""
        return self.rows_read == self.split.files.rows

    def tally(self, column: str) -> Tally:
        """Returns the tally of a column in all files."""
        return joined(self.tallies[column])


@dataclass
class _Pass:
    """A pass that is under way."""

    split: Split
    columns: Sequence[str]
    keys: list[str]
    mask: np.uint64
    tallies: dict[str, list[Tally]]
    sampled: dict[str, list[pa.Array]]
    file_of: list[np.ndarray] = field(default_factory=list)
    hashes: list[np.ndarray] = field(default_factory=list)

    def add(self, group: RowGroup, column: Column, rows: np.ndarray) -> None:
        """Adds a row group, of which `rows` go to the sample."""
        kinds = self.split.kinds
        self.file_of.append(np.full(len(rows), group.file))
        if not self.keys:
            whole = {name: column(name) for name in self.columns}
            self.keys, column = key_columns(whole, kinds), whole.__getitem__
        keys = {name: plain_array(column(name)) for name in self.keys}
        chosen = chosen_rows(
            [bits_of(computed(array, kinds[name]), kinds[name]) for name, array in keys.items()], self.mask
        )
        sampled, hashed, bits = _indices(rows, group), _indices(chosen, group), []
        for name in self.columns:
            array, kind = keys[name] if name in keys else plain_array(column(name)), kinds[name]
            self.tallies[name][group.file].add(array, kind)
            self.sampled[name].append(_taken(array, sampled, kind))
            bits.append(bits_of(_taken(array, hashed, kind), kind))
        self.hashes.append(hash_rows(bits))


def _indices(rows: np.ndarray, group: RowGroup) -> pa.Array | None:
    return None if len(rows) == group.rows else pa.array(rows)


def _taken(array: pa.Array, rows: pa.Array | None, kind: Kind) -> pa.Array:
    """Returns some rows, or all, in the type that they are computed in."""
    return computed(array if rows is None else array.take(rows), kind)


def read_split(
    split: Split,
    config: DataConfig,
    columns: Sequence[str],
    groups: Sequence[RowGroup],
    rows: int,
    seed: int,
    keys: list[str],
    mask: np.uint64,
) -> tuple[Measured, list[str]]:
    """Reads row groups of a split; memory is that of a row group and of the sample.

    Args:
        split: The split.
        config: Names the reader.
        columns: The columns to measure.
        groups: The row groups to read.
        rows: Rows of the sample.
        seed: Decides which rows are sampled.
        keys: The columns by which rows are chosen to be hashed. Empty: chosen from the first row group.
        mask: Bits that choose them.

    Returns:
        What was read, and the key columns.

    Raises:
        InputError: A file cannot be read.
    """
    reader, read = RowGroupReader(split.files, config, columns), sum(group.rows for group in groups)
    tallies = {name: [Tally() for _ in split.files.files] for name in columns}
    running = _Pass(split, columns, keys, mask, tallies, {name: [] for name in columns})
    for number, group in enumerate(groups):
        wanted = group.rows if rows >= read else max(1, round(rows * group.rows / read))
        random = np.random.default_rng([seed, number])
        sampled = np.sort(random.choice(group.rows, wanted, replace=False, shuffle=False))
        with reader.open(group) as column:
            running.add(group, column, sampled)
    arrays = {
        name: pa.chunked_array(parts, COMPUTED[split.kinds[name]]).combine_chunks()
        for name, parts in running.sampled.items()
    }
    found = Measured(
        split,
        tallies,
        pa.table(arrays),
        np.concatenate(running.file_of),
        np.concatenate(running.hashes),
        read,
    )
    return found, running.keys
