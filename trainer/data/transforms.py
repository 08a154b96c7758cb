"""What features make of columns, each by the keys of `DenseFeature` and `SparseFeature`."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config.features import TIMES, DenseFeature, SparseFeature
from trainer.core.splitmix import mix
from trainer.data.chunk import Chunk
from trainer.rules.nulls import is_missing, zero_filled
from trainer.rules.plain_types import SECOND, to_float32
from trainer.rules.strings import as_integers

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"log1p": np.log1p, "log3": lambda x: np.log(x + 3)}
HOUR, DAY = 3600, 86400  # in seconds
# Of integers that are times: years 1973 to 2099. So numbers such as 20260131, and times in milliseconds, are noticed.
SECONDS = range(10**8, 4_102_444_800)
NO_TIME = "is no time in seconds since 1970, between the years 1973 and 2099; write timestamps or dates"


def dense_values(name: str, feature: DenseFeature, chunk: Chunk) -> np.ndarray:
    """Returns a dense feature, `[R]` float32.

    Raises:
        InputError: A value is not finite, or no time.
    """
    column = feature.column or name
    raw = _raw_numbers(column, feature, chunk)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = np.clip(raw, *np.asarray(feature.clip, np.float32)) if feature.clip else raw
        if feature.transform in FUNCTIONS:
            values = FUNCTIONS[feature.transform](values)
        if (feature.mean, feature.std) != (0.0, 1.0):
            values = (values - np.float32(feature.mean)) / np.float32(feature.std)
        good = np.isfinite(values.max(initial=0) - values.min(initial=0))  # faster than the mask, which names the value
    if not good:
        why = f"has no finite value under the transform '{feature.transform}'"
        chunk.check(column, raw, np.isfinite(values), why)
    return values


def _raw_numbers(column: str, feature: DenseFeature, chunk: Chunk) -> np.ndarray:
    """Returns numbers before the transform, or those that it makes of nulls and times, `[R]` float32."""
    if feature.transform == "is_missing":
        missing = chunk.array(column).is_null(nan_is_null=True)
        return missing.to_numpy(zero_copy_only=False).astype(np.float32)
    if feature.transform in TIMES:
        seconds, missing = _seconds(column, chunk)
        values = _age(seconds, str(feature.now)) if feature.transform == "age" else _part(seconds, feature.transform)
        return np.where(missing, np.float32(feature.missing), values.astype(np.float32))
    array = to_float32(chunk.numbers(column))
    values = zero_filled(array)
    if array.null_count and feature.missing:
        values[is_missing(array)] = feature.missing
    return values


def single_ids(name: str, feature: SparseFeature, chunk: Chunk) -> pa.Array:
    """Returns the id of each row before the rule of `feature.ids`, `[R]` integers or strings, null where it has none.

    Raises:
        InputError: A value is not a number or no time.
    """
    if feature.columns:
        return _crossed([chunk.ids(column) for column in feature.columns])
    column = feature.column or name
    if feature.buckets:
        return _bucketized(column, feature.buckets, chunk)
    if feature.transform != "none":
        seconds, missing = _seconds(column, chunk)
        return pa.array(_part(seconds, feature.transform), mask=missing)
    return shifted(chunk.ids(column), feature.offset)


def shifted(ids: pa.Array, offset: int) -> pa.Array:
    """Returns ids, integers of any width, plus an offset; nulls stay."""
    if not offset:
        return ids
    wide = _filled(ids, pa.uint64() if pa.types.is_uint64(ids.type) else pa.int64())
    return pa.array(wide + np.int64(offset).astype(wide.dtype), mask=is_missing(ids))


def kept(offsets: np.ndarray, array: pa.Array, feature: SparseFeature) -> tuple[np.ndarray, pa.Array]:
    """Returns lists with no more than `feature.max_ids` elements: where each begins, and the elements."""
    lengths, longest = np.diff(offsets), feature.max_ids
    if longest is None or not len(lengths) or lengths.max() <= longest:
        return offsets, array
    places = np.arange(len(array))
    if feature.keep == "first":
        stay = places - np.repeat(offsets[:-1], lengths) < longest
    else:
        stay = places - np.repeat(offsets[1:], lengths) >= -longest
    return np.concatenate([[0], np.cumsum(np.minimum(lengths, longest))]), array.filter(pa.array(stay))


def _crossed(arrays: Sequence[pa.Array]) -> pa.Array:
    """Returns an id for each combination of single ids, in their order; null where one of them is."""
    first, *others = (as_integers(array) for array in arrays)
    for ids in others:
        first = mix(first) ^ ids.astype(np.uint64)
    missing = np.logical_or.reduce([is_missing(array) for array in arrays])
    return pa.array(first.view(np.int64), mask=missing)


def _bucketized(column: str, edges: list[float], chunk: Chunk) -> pa.Array:
    array = chunk.numbers(column)
    values = _filled(array, pa.float32())
    chunk.check(column, values, ~np.isnan(values), "is in no bucket; write a null where a number is missing")
    places = np.searchsorted(np.asarray(edges, np.float32), values, side="right")
    return pa.array(places.astype(np.int32), mask=is_missing(array))


def seconds_of(column: str, chunk: Chunk) -> pa.Array:
    """Returns a column of times as whole seconds since 1970 in UTC, null where they are missing.

    Raises:
        InputError: An integer is no time.
    """
    seconds, missing = _seconds(column, chunk)
    return pa.array(seconds, mask=missing)


def _seconds(column: str, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Returns times as whole seconds since 1970 in UTC, `[R]` int64, and which are missing."""
    array = chunk.array(column)
    missing, dtype = is_missing(array), array.type
    if pa.types.is_date(dtype):
        return _filled(array.cast(pa.date32(), safe=False).cast(pa.int32()), pa.int64()) * DAY, missing
    if pa.types.is_timestamp(dtype):
        return _filled(array.cast(pa.int64()), pa.int64()) // SECOND[dtype.unit], missing
    seconds = _filled(array, pa.int64())
    chunk.check(column, seconds, missing | (seconds >= SECONDS.start) & (seconds < SECONDS.stop), NO_TIME)
    return seconds, missing


def _part(seconds: np.ndarray, part: str) -> np.ndarray:
    return seconds // HOUR % 24 if part == "hour" else (seconds // DAY + 3) % 7  # 1970 began on a Thursday


def _age(seconds: np.ndarray, now: str) -> np.ndarray:
    return (day_start(now) - seconds) / DAY


def day_start(day: str) -> int:
    """Returns the beginning of a day in UTC, in seconds since 1970."""
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())


def _filled(array: pa.Array, dtype: pa.DataType) -> np.ndarray:
    """Returns numbers as another type, with 0 where they are missing."""
    return zero_filled(pc.cast(array, dtype, safe=False))
