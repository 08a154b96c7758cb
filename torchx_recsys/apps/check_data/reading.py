"""Reads the row groups of a split once, for tallies of all values, a sample of rows, and hashes of some rows.

Queries of an engine would be slower: DuckDB took twice the processor time for the tallies alone
(docs/guides/check_data.md, Speed). On Spark, the workers call these functions.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torchx_recsys.apps.check_data.distinct import OF, Distinct, distinct_of
from torchx_recsys.apps.check_data.hashes import bits_of, different, hash_rows
from torchx_recsys.apps.check_data.splits import COMPUTED, Kind, Split, computed
from torchx_recsys.apps.engines.engine import Engine
from trainer.config.data import DataConfig
from trainer.data.dataset import RowGroup
from trainer.data.readers.base import Column
from trainer.data.row_groups import RowGroupReader
from trainer.rules.plain_types import plain_array

KEPT = 100_000  # approximate number of hashes; a sample of more rows has all copies of a row or none
KEYS = 2
LOOKED_AT = 4000


@dataclass
class Tally:
    """Counts of a column in some rows.

    Attributes:
        rows: Number of rows.
        nulls: Number of rows without a value.
        values: Number of values; for lists, of their elements.
        minimum: The smallest finite value.
        maximum: The largest finite value.
        total: Sum over row groups whose values are all in [0, 1].
        nan: Number of NaN values.
        infinite: Number of infinite values.
    """

    rows: int = 0
    nulls: int = 0
    values: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    total: float = 0.0
    nan: int = 0
    infinite: int = 0

    @property
    def rate(self) -> float:
        """Mean of the values if all are in [0, 1], as labels are; else NaN."""
        within = 0 <= self.minimum <= self.maximum <= 1
        return self.total / (self.values - self.nan - self.infinite) if within else math.nan

    @property
    def largest(self) -> float:
        """The largest absolute finite value; 0 without values."""
        return max(abs(self.minimum), abs(self.maximum)) if self.has_values else 0.0

    @property
    def has_values(self) -> bool:
        """Whether there is a finite value."""
        return self.minimum <= self.maximum

    def join(self, other: "Tally") -> None:
        """Adds another tally."""
        for name in ("rows", "nulls", "values", "total", "nan", "infinite"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)

    def add(self, array: pa.Array, kind: Kind) -> None:
        """Adds rows of a column of plain values."""
        self.rows += len(array)
        self.nulls += array.null_count
        values = pc.list_flatten(array) if kind in ("integers", "texts") else array  # pyrefly: ignore
        self.values += len(values) - values.null_count
        if kind not in ("text", "texts", "empty"):
            self._add_numbers(_numbers(values, kind))

    def _add_numbers(self, array: pa.Array) -> None:
        low, high = _extremes(array)
        if not (math.isfinite(low) and math.isfinite(high)) and pa.types.is_floating(array.type):
            self.nan += pc.sum(pc.is_nan(array)).as_py() or 0  # pyrefly: ignore[missing-attribute]
            self.infinite += pc.sum(pc.is_inf(array)).as_py() or 0  # pyrefly: ignore[missing-attribute]
            array = array.filter(pc.is_finite(array))  # pyrefly: ignore[missing-attribute]
            low, high = _extremes(array)
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        if 0 <= low <= high <= 1:
            self.total += pc.sum(array).as_py()  # pyrefly: ignore[missing-attribute]


@dataclass(frozen=True)
class Measured:
    """The rows of a split that were read, and their figures.

    Attributes:
        split: The split.
        tallies: By column, the tally of each file over all rows read.
        sample: A sample of the rows, in the types of `COMPUTED`.
        file_of: The file of each row of the sample, `[R]`.
        hashes: Hashes of some rows, the same rows in every split.
        rows_read: Number of rows read.
        distinct: The distinct ids of all rows, by column; empty if the sample has all rows, or not all rows were read.
    """

    split: Split
    tallies: Mapping[str, list[Tally]]
    sample: pa.Table
    file_of: np.ndarray
    hashes: np.ndarray
    rows_read: int
    distinct: Mapping[str, Distinct]

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
        """Whether every row was read, so that counts and extremes cover all rows."""
        return self.rows_read == self.split.files.rows

    def tally(self, column: str) -> Tally:
        """Returns the tally of a column in all files."""
        return joined(self.tallies[column])


def read_split(
    split: Split,
    config: DataConfig,
    columns: Sequence[str],
    groups: Sequence[RowGroup],
    rows: int,
    seed: int,
    keys: list[str],
    mask: np.uint64,
    engine: Engine,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[Measured, list[str]]:
    """Reads row groups of a split; keeps the sample, and a row group for each thread, in memory.

    Args:
        split: The split.
        config: Names the reader.
        columns: The columns to measure.
        groups: The row groups to read.
        rows: Rows of the sample.
        seed: Decides which rows are sampled.
        keys: The columns whose values decide which rows are hashed. Empty: chosen from the first row group.
        mask: The bits that select these rows.
        engine: Reads the row groups at the same time.
        progress: Called with the number of rows of each row group read.

    Returns:
        The figures, and the key columns.

    Raises:
        InputError: A file cannot be read.
        StorageError: The engine has failed.
    """
    read = sum(group.rows for group in groups)
    wanted = [
        WantedRows(number, group, group.rows if rows >= read else max(1, round(rows * group.rows / read)))
        for number, group in enumerate(groups)
    ]
    found: list[ReadRows] = []
    tallies = {name: [Tally() for _ in split.files.files] for name in columns}
    is_sample_of_all = rows < read == split.files.rows
    distinct = {name: Distinct() for name in columns if is_sample_of_all and split.kinds[name] in OF}
    reading = Reading(split, config, columns, keys, mask, seed, distinct)

    def keep(one: ReadRows) -> None:
        progress(one.rows)
        for name, tally in one.tallies.items():
            tallies[name][one.file].join(tally)
        for name, ids in one.distinct.items():
            distinct[name] = distinct[name].join(ids)
        found.append(replace(one, tallies={}, distinct={}))  # tallies of a million row groups would fill the memory

    if not keys:
        first = reading(wanted.pop(0))
        reading = replace(reading, keys=first.keys)
        keep(first)
    waiting: dict[int, ReadRows] = {}
    for one in engine.map(reading, wanted):
        waiting[one.number] = one
        while len(found) in waiting:  # in order, as sums of floating-point numbers depend on it
            keep(waiting.pop(len(found)))
    arrays = {
        name: pa.chunked_array([one.sample[name] for one in found], COMPUTED[split.kinds[name]]).combine_chunks()
        for name in columns
    }
    measured = Measured(
        split,
        tallies,
        pa.table(arrays),
        np.repeat([one.file for one in found], [one.sampled for one in found]),
        np.concatenate([one.hashes for one in found]),
        read,
        distinct,
    )
    return measured, reading.keys


@dataclass(frozen=True)
class WantedRows:
    """A row group to read.

    Attributes:
        number: Its index among the row groups to read.
        group: The row group.
        sampled: Number of its rows that go to the sample.
    """

    number: int
    group: RowGroup
    sampled: int


@dataclass(frozen=True)
class ReadRows:
    """The rows of a row group, and their figures.

    Attributes:
        number: Its index among the row groups to read.
        file: Its file.
        rows: Its rows.
        sampled: Number of rows in the sample.
        keys: The columns whose values decided which rows are hashed.
        tallies: A tally of all rows, by column.
        sample: The sampled rows in the types of `COMPUTED`, by column.
        hashes: Hashes of the chosen rows.
        distinct: The distinct ids of the columns whose ids are counted.
    """

    number: int
    file: int
    rows: int
    sampled: int
    keys: list[str]
    tallies: Mapping[str, Tally]
    sample: Mapping[str, pa.Array]
    hashes: np.ndarray
    distinct: Mapping[str, Distinct]


@dataclass(frozen=True)
class Reading:
    """Reads row groups of a split one by one, in any process.

    Attributes:
        split: The split.
        config: Names the reader.
        columns: The columns.
        keys: The columns whose values decide which rows are hashed.
        mask: The bits that select these rows.
        seed: Decides which rows are sampled.
        distinct: The columns whose ids are counted, each with its ids so far. Known ids make counting faster, with the
            same result.
    """

    split: Split
    config: DataConfig
    columns: Sequence[str]
    keys: list[str]
    mask: np.uint64
    seed: int
    distinct: Mapping[str, Distinct]

    @cached_property
    def _reader(self) -> RowGroupReader:
        return RowGroupReader(self.split.files, self.config, self.columns)

    def __call__(self, wanted: WantedRows) -> ReadRows:
        """Reads a row group; chooses the keys if there are none.

        Raises:
            InputError: The file cannot be read.
        """
        with self._reader.open(wanted.group) as column:
            return self._read(wanted, column)

    def _read(self, wanted: WantedRows, column: Column) -> ReadRows:
        group, kinds, key_names = wanted.group, self.split.kinds, self.keys
        random = np.random.default_rng([self.seed, wanted.number])
        rows = np.sort(random.choice(group.rows, wanted.sampled, replace=False, shuffle=False))
        if not key_names:
            whole = {name: column(name) for name in self.columns}
            key_names, column = key_columns(whole, kinds), whole.__getitem__
        keys = {name: plain_array(column(name)) for name in key_names}
        chosen = chosen_rows(
            [bits_of(computed(array, kinds[name]), kinds[name]) for name, array in keys.items()], self.mask
        )
        sampled, hashed, bits = _indices(rows, group), _indices(chosen, group), []
        tallies, sample, distinct = {name: Tally() for name in self.columns}, {}, {}
        for name in self.columns:
            array, kind = keys[name] if name in keys else plain_array(column(name)), kinds[name]
            tallies[name].add(array, kind)
            sample[name] = _taken(array, sampled, kind)
            bits.append(bits_of(_taken(array, hashed, kind), kind))
            if name in self.distinct:
                distinct[name] = distinct_of(array, kind, self.distinct[name].limit)
        hashes = hash_rows(bits)
        return ReadRows(wanted.number, group.file, group.rows, len(rows), key_names, tallies, sample, hashes, distinct)


def _indices(rows: np.ndarray, group: RowGroup) -> pa.Array | None:
    return None if len(rows) == group.rows else pa.array(rows)


def _taken(array: pa.Array, rows: pa.Array | None, kind: Kind) -> pa.Array:
    """Returns the selected rows, or all rows, in the type of their kind in `COMPUTED`."""
    return computed(array if rows is None else array.take(rows), kind)


def joined(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum of tallies."""
    whole = Tally()
    for one in tallies:
        whole.join(one)
    return whole


def _numbers(array: pa.Array, kind: Kind) -> pa.Array:
    """Returns values as integers of any width, or as floating-point numbers of a width that is fast in NumPy."""
    if pa.types.is_integer(array.type) or pa.types.is_float32(array.type):
        return array
    return computed(array, "integer" if kind == "integers" else kind)


def _extremes(array: pa.Array) -> tuple[float, float]:
    """Returns the smallest and the largest value: NaN if a value is NaN, infinity and -infinity without values."""
    if array.null_count == len(array):
        return math.inf, -math.inf
    if array.null_count:
        array = array.fill_null(array[array.is_valid().index(True).as_py()])
    values = array.to_numpy()  # NumPy finds extremes five times as fast as Arrow
    return values.min().item(), values.max().item()


def key_columns(columns: Mapping[str, pa.ChunkedArray], kinds: Mapping[str, Kind]) -> list[str]:
    """Returns the columns to select rows by: the columns with most distinct values, for an even selection."""
    single = [name for name in columns if kinds[name] in ("integer", "number", "time")] or [*columns]
    first = {name: computed(plain_array(columns[name][:LOOKED_AT]), kinds[name]) for name in single}
    distinct = {name: len(different(bits_of(values, kinds[name]))) for name, values in first.items()}
    best = sorted(single, key=lambda name: -distinct[name])
    # A single column that hardly repeats spreads rows well enough.
    return best[: 1 if distinct[best[0]] > len(columns[best[0]][:LOOKED_AT]) / 2 else KEYS]


def sampling_mask(rows: int) -> np.uint64:
    """Returns the bits that are zero in the hashes of selected rows, given the number of all rows."""
    return np.uint64(2 ** max(0, int(np.ceil(np.log2(max(1, rows) / KEPT)))) - 1)


def chosen_rows(keys: Sequence[np.ndarray], mask: np.uint64) -> np.ndarray:
    """Returns the indices of the selected rows, given the bits of the key columns, `[R]` each."""
    return np.flatnonzero(hash_rows(keys) & mask == 0)
