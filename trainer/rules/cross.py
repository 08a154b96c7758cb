"""`columns`: turns each combination of single ids from two or three columns into an id."""

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from trainer.core.arrays import mix, splitmix64
from trainer.core.errors import InputError
from trainer.rules.base import SparseKeys
from trainer.rules.nulls import is_missing
from trainer.rules.plain_types import is_list
from trainer.rules.strings import as_integers

if TYPE_CHECKING:
    from torch import Tensor


class CrossKeys(SparseKeys):
    """The key of this rule."""

    columns: list[str] = []
    """Instead: two or three columns of single ids, whose combinations are the ids. Needs ids = "hash"."""

    def check_columns(self, key: str) -> None:
        """Refuses other numbers of columns, and id rules that cannot take numbers of 64 bits."""
        columns = self.columns
        if not columns:
            return
        if len(columns) not in (2, 3) or len({*columns}) < len(columns):
            raise InputError(f"{key}.columns is {columns}; it must be two or three columns; one alone is {key}.column")
        if self.column is not None:
            raise InputError(f"{key}.column is '{self.column}' and {key}.columns is {columns}; set one of them")
        if self.ids != "hash":
            raise InputError(f"{key}.columns is {columns}, but {key}.ids is '{self.ids}'; a cross needs 'hash'")


def check_single(file: str, column: str, dtype: pa.DataType, key: str, feature: CrossKeys) -> None:
    """Refuses a column of lists."""
    if feature.columns and is_list(dtype):
        raise InputError(f"{file}: column '{column}' is of type {dtype}, but {key}.columns crosses single ids only")


def crossed(arrays: Sequence[pa.Array]) -> pa.Array:
    """Returns an id for each combination of single ids, in order; null if one of the ids is null."""
    first, *others = (as_integers(array) for array in arrays)
    for ids in others:
        first = mix(first) ^ ids.astype(np.uint64)
    missing = np.logical_or.reduce([is_missing(array) for array in arrays])
    return pa.array(first.view(np.int64), mask=missing)


def crossed_in_torch(columns: Sequence["Tensor"]) -> "Tensor":
    """Returns the same ids, int64."""
    return reduce(lambda ids, more: splitmix64(ids) ^ more, columns)


def inputs_of_cross(name: str, feature: CrossKeys) -> list[str]:
    """Returns the input names of a cross's columns in an exported model."""
    return [f"{name}.{column}" for column in feature.columns]
