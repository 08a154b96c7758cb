"""Transforms the columns of a chunk by the rules of features."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config.features import DenseFeature, SparseFeature
from trainer.core.console import plural
from trainer.data.chunk import Chunk
from trainer.rules.buckets import NO_BUCKET, bucketized
from trainer.rules.cross import crossed
from trainer.rules.earlier import are_earlier
from trainer.rules.nulls import is_missing, zero_filled
from trainer.rules.numbers import filled, null_flags, number_of_time, transformed
from trainer.rules.offset import shifted
from trainer.rules.plain_types import as_lists
from trainer.rules.times import NO_TIME, TIMES, are_times, part_of_time, to_seconds
from trainer.rules.weights import GREATEST, aligned, allowed_weights, is_weight, list_lengths, to_weights, with_weights


def dense_values(name: str, feature: DenseFeature, chunk: Chunk) -> np.ndarray:
    """Returns a dense feature, `[R]` float32.

    Raises:
        InputError: A value is not finite, or not a time.
    """
    column = feature.column or name
    raw = _raw_numbers(column, feature, chunk)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = transformed(raw, feature)
        good = np.isfinite(values.max(initial=0) - values.min(initial=0))  # faster than the mask, which names the value
    if not good:
        why = f"has no finite value under the transform '{feature.transform}'"
        chunk.check(column, raw, np.isfinite(values), why)
    return values


def _raw_numbers(column: str, feature: DenseFeature, chunk: Chunk) -> np.ndarray:
    """Returns numbers before the transform, or the transform of nulls and times, `[R]` float32."""
    if feature.transform == "is_missing":
        return null_flags(chunk.array(column))
    if feature.transform in TIMES:
        return number_of_time(*_seconds(column, chunk), feature)
    return filled(chunk.numbers(column), feature)


def single_ids(name: str, feature: SparseFeature, chunk: Chunk) -> pa.Array:
    """Returns the id of each row before the rule of `feature.ids`, `[R]` integers or strings, null without an id.

    Raises:
        InputError: A value is not a number, or not a time.
    """
    if feature.columns:
        return crossed([chunk.ids(column) for column in feature.columns])
    column = feature.column or name
    if feature.buckets:
        array = chunk.numbers(column)
        values = zero_filled(pc.cast(array, pa.float32(), safe=False))
        chunk.check(column, values, ~np.isnan(values), NO_BUCKET)
        return pa.array(bucketized(values, feature.buckets), mask=is_missing(array))
    if feature.transform != "none":
        seconds, missing = _seconds(column, chunk)
        return pa.array(part_of_time(seconds, feature.transform), mask=missing)
    return shifted(chunk.ids(column), feature.offset)


def seconds_of(column: str, chunk: Chunk) -> pa.Array:
    """Returns a column of times in whole seconds since 1970 in UTC, null for missing times.

    Raises:
        InputError: An integer is not a time.
    """
    seconds, missing = _seconds(column, chunk)
    return pa.array(seconds, mask=missing)


def _seconds(column: str, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    array = chunk.array(column)
    seconds, missing = to_seconds(array)
    if pa.types.is_integer(array.type):
        chunk.check(column, seconds, are_times(seconds, missing), NO_TIME)
    return seconds, missing


def earlier_lists(column: str, feature: SparseFeature, chunk: Chunk, lists: pa.Array) -> pa.Array:
    """Returns lists without the elements that are not before the time of their row, or have no time.

    Args:
        column: The column of the ids in the lists.
        feature: Its rules, with `times` and `before`.
        chunk: The rows.
        lists: The lists, `[R]`.

    Raises:
        InputError: An id has no place in the list of times, a row has no time, or an integer is not a time.
    """
    lengths, times = list_lengths(lists), as_lists(chunk.array(str(feature.times)))
    _check_lengths(column, lengths, str(feature.times), list_lengths(times), "time", chunk)
    now, unknown = _seconds(str(feature.before), chunk)
    if unknown.any():
        chunk.refuse(f"column '{feature.before}': null is not allowed for the time of a sample", int(unknown.argmax()))
    of_ids, offsets = times.flatten(), np.concatenate([[0], np.cumsum(lengths)])
    seconds, missing = to_seconds(of_ids)
    if pa.types.is_integer(of_ids.type) and not (good := are_times(seconds, missing)).all():
        place = int(good.argmin())
        row = int(np.searchsorted(offsets, place, side="right")) - 1
        chunk.refuse(f"column '{feature.times}': {seconds[place]} {NO_TIME}", row)
    stay = are_earlier(seconds, np.repeat(now, lengths), feature.within_seconds) & ~missing
    if stay.all():
        return lists
    lasting = np.concatenate([[0], np.cumsum(stay)])[offsets]
    return pa.LargeListArray.from_arrays(lasting, lists.flatten().filter(pa.array(stay)))


def weighted_lists(column: str, feature: SparseFeature, chunk: Chunk) -> pa.LargeListArray:
    """Returns the ids of each row with their weights, `[R]` lists; a single id as a list of one.

    Raises:
        InputError: An id has no weight, or a forbidden weight.
    """
    ids, weights = aligned(chunk.ids(column), chunk.array(str(feature.weights)))
    lengths = list_lengths(ids)
    _check_lengths(column, lengths, str(feature.weights), list_lengths(weights), "weight", chunk)
    offsets, ids = np.concatenate([[0], np.cumsum(lengths)]), ids.flatten()
    weights = to_weights(weights.flatten())
    _check(ids, weights, offsets, feature, chunk)
    return pa.LargeListArray.from_arrays(offsets, with_weights(ids, weights))


def _check_lengths(column: str, lengths: np.ndarray, beside: str, found: np.ndarray, noun: str, chunk: Chunk) -> None:
    if not (good := lengths == found).all():
        row = int(good.argmin())
        chunk.refuse(
            f"column '{beside}': {plural(found[row], noun)} for {plural(lengths[row], 'id')} of '{column}'; each id "
            "needs one",
            row,
        )


def _check(ids: pa.Array, weights: pa.Array, offsets: np.ndarray, feature: SparseFeature, chunk: Chunk) -> None:
    values = weights.to_numpy(zero_copy_only=False)  # null as NaN
    good = is_weight(values, feature.pooling, GREATEST)
    if ids.null_count:  # a null id is left out with its weight
        good |= ids.is_null().to_numpy(zero_copy_only=False)
    if not good.all():
        place = int(good.argmin())
        value = "null" if weights[place].as_py() is None else values[place]
        chunk.refuse(
            f"column '{feature.weights}': {value} is not a weight; weights of ids are "
            f"{allowed_weights(feature.pooling)}",
            int(np.searchsorted(offsets, place, side="right")) - 1,
        )
