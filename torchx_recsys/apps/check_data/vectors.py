"""Columns of vectors: lists of numbers of one length, read in a pass of their own, place by place alike."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.finding import Finding, percent
from torchx_recsys.apps.check_data.label import short
from torchx_recsys.apps.check_data.splits import Split, kind_of
from torchx_recsys.apps.engines.engine import Engine
from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature
from trainer.core.console import plural
from trainer.core.section import Tree
from trainer.data.dataset import RowGroup
from trainer.data.row_groups import RowGroupReader
from trainer.rules.dense import transformed
from trainer.rules.plain_types import as_lists, is_list, list_lengths, plain_array, plain_type, to_float32, to_numbers

MOSTLY_NULL = 0.9
OFF_CENTER, NARROW, WIDE = 1.0, 0.2, 5.0  # limits for mean and length, which are 0 and 1 if standardized


@dataclass
class VectorTally:
    """Counts of a column of vectors in some rows.

    Attributes:
        rows: Number of rows.
        nulls: Number of rows without a vector.
        lengths: How many vectors have each length.
        missing: Number of places without a number, in vectors.
        not_finite: Number of places that are NaN, or infinite in float32.
        values: Number of finite numbers.
        minimum: The smallest finite number.
        maximum: The largest finite number.
        total: Sum of the finite numbers.
        squares: Sum of their squares.
    """

    rows: int = 0
    nulls: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    missing: int = 0
    not_finite: int = 0
    values: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    total: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """Mean of all numbers."""
        return self.total / self.values if self.values else 0.0

    @property
    def std(self) -> float:
        """Standard deviation of all numbers."""
        return math.sqrt(max(0.0, self.squares / self.values - self.mean**2)) if self.values else 1.0

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> "VectorTally":
        """Returns the tally of rows."""
        lists = as_lists(to_numbers(plain_array(column)))
        flat = to_float32(lists.flatten())
        numbers = flat.drop_null().to_numpy(zero_copy_only=False)
        finite = numbers[np.isfinite(numbers)].astype(np.float64)
        lengths = Counter(list_lengths(lists.drop_null()).tolist())
        found = cls(len(lists), lists.null_count, lengths, flat.null_count, len(numbers) - len(finite), len(finite))
        if len(finite):
            found.minimum, found.maximum = float(finite.min()), float(finite.max())
            found.total, found.squares = float(finite.sum()), float(finite @ finite)
        return found

    def join(self, other: "VectorTally") -> None:
        """Adds another tally."""
        for name in ("rows", "nulls", "lengths", "missing", "not_finite", "values", "total", "squares"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)


@dataclass(frozen=True)
class Vectors:
    """A column of vectors in all splits.

    Attributes:
        name: Its name.
        dtype: Its type in the first file.
        tallies: The tally of the rows read of each split, by name; the first split is for training.
    """

    name: str
    dtype: pa.DataType
    tallies: Mapping[str, VectorTally]

    @property
    def first(self) -> VectorTally:
        """The tally of the split to train on."""
        return next(iter(self.tallies.values()))

    @cached_property
    def lengths(self) -> Counter[int]:
        """How many vectors of all splits have each length."""
        return sum((one.lengths for one in self.tallies.values()), Counter[int]())

    def why_not(self) -> str:
        """Returns why the column cannot be a feature; empty if it can."""
        if not self.first.values:
            return "no value"
        if len(self.lengths) > 1:
            return f"lists of {min(self.lengths)} to {max(self.lengths)} numbers; vectors have one length"
        if any(one.not_finite for one in self.tallies.values()):
            return "values that are NaN or infinite"
        return "one value" if self.first.minimum == self.first.maximum else ""

    def rule(self) -> dict[str, Any]:
        """Returns the keys of a dense feature whose vectors have a length of about 1.

        Places of a deviation of 1 would weigh like as many numbers: with titles of MovieLens, the recall of two towers
        fell (docs/guides/vectors.md).
        """
        mean, width = short(self.first.mean), next(iter(self.lengths))
        rule = {"width": width, "mean": mean, "std": short(self.first.std * math.sqrt(width)) or 1.0}
        has_gaps = any(one.nulls or one.missing for one in self.tallies.values())
        return rule | ({"missing": mean} if has_gaps else {})

    def row(self, role: str) -> list[str]:
        """Returns the cells of the column's row in the table of columns."""
        low, *more = sorted(self.lengths) or [0]
        length = f"{low} to {more[-1]}" if more else f"{low}"
        tally = self.first
        numbers = f": {tally.minimum:.4g} .. {tally.mean:.4g} .. {tally.maximum:.4g}" if tally.values else ""
        return [
            self.name,
            role,
            str(self.dtype),
            percent(tally.nulls, tally.rows),
            f"{length} numbers{numbers}",
            "",
            "",
        ]

    def tree(self, role: str) -> Tree:
        """Returns the figures as JSON values."""
        tally, lengths = self.first, {str(length): self.lengths[length] for length in sorted(self.lengths)}
        tree: Tree = {"as": role, "kind": "numbers", "rows": tally.rows, "nulls": tally.nulls, "lengths": lengths}
        extremes = {"minimum": tally.minimum, "maximum": tally.maximum}
        return tree | (extremes | {"mean": tally.mean, "std": tally.std} if tally.values else {})


@dataclass(frozen=True)
class _Reading:
    """Reads the vectors of a row group, in any process."""

    split: Split
    config: DataConfig
    columns: Sequence[str]

    @cached_property
    def _reader(self) -> RowGroupReader:
        return RowGroupReader(self.split.files, self.config, self.columns)

    def __call__(self, wanted: tuple[int, RowGroup]) -> tuple[int, dict[str, VectorTally]]:
        number, group = wanted
        with self._reader.open(group) as column:
            return number, {name: VectorTally.of(column(name)) for name in self.columns}


def vector_columns(splits: Sequence[Split], config: DataConfig | None) -> list[str]:
    """Returns the columns of vectors: of the features with a width, or without a configuration lists of fractions."""
    schemas = [schema for split in splits for schema in split.files.files.first_of_schemas()]
    if config:
        names = dict.fromkeys(feature.column or name for name, feature in config.dense.items() if feature.width)
        return [name for name in names if all(is_list(_type_in(schema, name)) for schema in schemas)]
    names = filter(None, schemas[0].names)
    return [name for name in names if all(_has_fractions(_type_in(schema, name)) for schema in schemas)]


def _type_in(schema: pa.Schema, name: str) -> pa.DataType:
    return schema.field(name).type if schema.get_field_index(name) >= 0 else pa.null()


def _has_fractions(dtype: pa.DataType) -> bool:
    plain = plain_type(dtype)
    return is_list(dtype) and kind_of(plain.value_type) == "number"


def read_vectors(
    splits: Sequence[Split],
    config: DataConfig,
    columns: Sequence[str],
    groups: Mapping[str, Sequence[RowGroup]],
    engine: Engine,
    progress: Callable[[int], object],
) -> list[Vectors]:
    """Reads columns of vectors.

    Args:
        splits: The splits.
        config: Names the reader.
        columns: The columns.
        groups: The row groups to read of each split.
        engine: Reads the row groups at the same time.
        progress: Called with the number of rows of each row group read.
    """
    tallies: dict[str, dict[str, VectorTally]] = {name: {} for name in columns}
    for split in splits if columns else ():
        wanted, found = [*enumerate(groups[split.name])], dict[int, dict[str, VectorTally]]()
        for number, one in engine.map(_Reading(split, config, columns), wanted):
            found[number] = one
            progress(wanted[number][1].rows)
        for name in columns:
            tallies[name][split.name] = whole = VectorTally()
            for number in sorted(found):  # in order, as sums of floating-point numbers depend on it
                whole.join(found[number][name])
    schema = splits[0].files.files[0].schema
    return [Vectors(name, schema.field(name).type, tallies[name]) for name in columns]


def vector_findings(config: DataConfig, vectors: Sequence[Vectors]) -> Iterator[Finding]:
    """Finds vectors of another length than the feature's, and places that training refuses."""
    of_column = {one.name: one for one in vectors}
    for name, feature in config.dense.items():
        if feature.width and (one := of_column.get(feature.column or name)):
            for split, tally in one.tallies.items():
                for severity, check, found, remedy in _faults(name, feature, tally):
                    yield Finding(severity, check, split, one.name, found, remedy)


def _faults(name: str, feature: DenseFeature, tally: VectorTally) -> Iterator[tuple[Any, str, str, str]]:
    if others := {length: number for length, number in tally.lengths.items() if length != feature.width}:
        lengths = f"{min(others)} to {max(others)}" if len(others) > 1 else f"{min(others)}"
        found = f"{plural(sum(others.values()), 'list')} of {lengths} numbers"
        remedy = f"write vectors of {feature.width} numbers, data.dense.{name}.width, or a null"
        yield "error", "vector length", f"{found}, of {plural(tally.rows, 'row')}", remedy
    if tally.not_finite:
        found = f"{plural(tally.not_finite, 'number')} NaN or infinite in float32"
        yield "error", "not a number", found, "write a null where there is no number"
    if not tally.values:
        yield "warning", "all null", f"none of {plural(tally.rows, 'row')} has a vector", "leave it out"
        return
    if tally.nulls >= MOSTLY_NULL * tally.rows:
        found = f"{percent(tally.nulls, tally.rows)} of the rows have no vector"
        yield "warning", "mostly null", found, "leave it out"
    if tally.minimum == tally.maximum:
        yield "warning", "constant", f"every number is {tally.minimum:.4g}", "leave it out: it carries no signal"
    with np.errstate(all="ignore"):
        ends = transformed(np.array([tally.minimum, tally.maximum], np.float32), feature)
    if not np.isfinite(ends).all():
        found = f"{tally.minimum:.4g} .. {tally.maximum:.4g} has no finite value under '{feature.transform}'"
        yield "error", "transform", found, f"set another data.dense.{name}.transform"


def off_center(feature: DenseFeature, vectors: Vectors) -> bool:
    """Returns whether vectors without a transform are far from a mean of 0 and a length of 1."""
    tally = vectors.first
    if not tally.values or feature.transform != "none" or feature.clip:
        return False
    mean, length = (tally.mean - feature.mean) / feature.std, tally.std * math.sqrt(feature.width or 1) / feature.std
    return abs(mean) > OFF_CENTER or not NARROW < length < WIDE
