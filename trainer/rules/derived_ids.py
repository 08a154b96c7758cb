"""Ids derived from other values: numbers in buckets, the hour or weekday of a time, combinations of columns."""

from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.core.arrays import mix, splitmix64
from trainer.core.errors import InputError
from trainer.rules.base import SparseKeys
from trainer.rules.hashing import as_integers
from trainer.rules.plain_types import SECOND, is_list, is_missing, plain_type, zero_filled

if TYPE_CHECKING:
    from torch import Tensor

NO_BUCKET = "is in no bucket; write a null where a number is missing"
TIME_VALUES = {"hour": 24, "weekday": 7}
"""The number of values of each part of a time."""
TIMES = ("hour", "weekday", "age")
"""The transforms that take times."""
HOUR, DAY = 3600, 86400  # seconds
# The range of integer times: years 1973 to 2099, so that numbers such as 20260131 and milliseconds are noticed.
SECONDS = range(10**8, 4_102_444_800)
NO_TIME = "is no time in seconds since 1970, between the years 1973 and 2099; write timestamps or dates"


class BucketKeys(SparseKeys):
    """The key of ids from numbers."""

    buckets: list[float] = []
    """Makes ids of numbers: 0 below the first of these edges, 1 from it on, and so on; rows is above their number."""

    def check_buckets(self, key: str) -> None:
        """Refuses edges that do not ascend."""
        if any(high <= low for low, high in pairwise(self.buckets)):
            raise InputError(f"{key}.buckets is {self.buckets}; its edges must ascend")


def bucketized(numbers: np.ndarray, edges: list[float]) -> np.ndarray:
    """Returns the bucket of each number, `[R]` float32 to `[R]` int32; numbers must not be NaN."""
    return np.searchsorted(np.asarray(edges, np.float32), numbers, side="right").astype(np.int32)


def bucketized_in_torch(numbers: "Tensor", edges: "Tensor") -> "Tensor":
    """Returns the same as `bucketized`, computed in torch, `[B]` int64."""
    return (numbers[:, None] >= edges).sum(1)


class TimeKeys(SparseKeys):
    """The key of ids from times; dense features have the same transforms, and ages."""

    transform: Literal["none", "hour", "weekday"] = "none"
    """Makes ids of times: the hour of the day, or the weekday (0 is Monday), both in UTC."""


def check_time(file: str, column: str, dtype: pa.DataType, key: str, transform: str) -> None:
    """Refuses a column without times."""
    kinds = [pa.types.is_timestamp, pa.types.is_integer, pa.types.is_null]
    kinds += [pa.types.is_date] if transform != "hour" else []
    if not any(kind(plain_type(dtype)) for kind in kinds):
        dates = ", dates" if transform != "hour" else ""
        raise InputError(
            f"{file}: column '{column}' is of type {dtype}, but {key}.transform is '{transform}'; it takes "
            f"timestamps{dates}, or integers: seconds since 1970"
        )


def to_seconds(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns times as whole seconds since 1970 in UTC, `[R]` int64, and which are missing, `[R]`."""
    missing, dtype = is_missing(array), array.type
    if pa.types.is_date(dtype):
        return _wide(array.cast(pa.date32(), safe=False).cast(pa.int32())) * DAY, missing
    if pa.types.is_timestamp(dtype):
        return _wide(array.cast(pa.int64())) // SECOND[dtype.unit], missing
    return _wide(array), missing


def _wide(array: pa.Array) -> np.ndarray:
    return zero_filled(pc.cast(array, pa.int64(), safe=False))


def are_times(seconds: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Returns which integers of a column are times or missing, `[R]`."""
    return missing | (seconds >= SECONDS.start) & (seconds < SECONDS.stop)


def part_of_time(seconds: Any, part: str) -> Any:
    """Returns the hour or weekday of times in seconds since 1970, for an array of NumPy or torch."""
    return seconds // HOUR % 24 if part == "hour" else (seconds // DAY + 3) % 7  # 1970 began on a Thursday


class CrossKeys(SparseKeys):
    """The key of ids from combinations of single ids."""

    columns: list[str] = []
    """Instead: two or three columns of single ids, whose combinations are the ids. Needs ids = "hash"."""

    def check_columns(self, key: str) -> None:
        """Refuses a wrong number of columns, and id rules that cannot take 64-bit numbers."""
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
    """Returns the same ids as `crossed`, computed in torch, int64."""
    return reduce(lambda ids, more: splitmix64(ids) ^ more, columns)


def inputs_of_cross(name: str, feature: CrossKeys) -> list[str]:
    """Returns the names of the inputs for the columns of a cross in an exported model."""
    return [f"{name}.{column}" for column in feature.columns]
