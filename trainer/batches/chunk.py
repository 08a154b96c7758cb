"""Consecutive rows of a row group, and the values of a column of them: numbers, times, ids, lists of ids."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config.features import DenseFeature, SparseFeature, columns_of
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.data.readers.base import Column
from trainer.data.selection import row_in_file
from trainer.rules.dense import filled, filled_vectors, null_flags, number_of_time, transformed
from trainer.rules.derived_ids import (
    NO_BUCKET,
    NO_TIME,
    TIMES,
    are_times,
    bucketized,
    crossed,
    part_of_time,
    to_seconds,
)
from trainer.rules.expression import evaluated
from trainer.rules.hashing import as_integers, shifted
from trainer.rules.id_lists import (
    GREATEST,
    aligned,
    allowed_weights,
    are_earlier,
    is_weight,
    to_weights,
    with_weights,
)
from trainer.rules.lookups import are_of_key, last_of_each, lists_of_map, overlaps
from trainer.rules.plain_types import (
    as_lists,
    is_missing,
    list_lengths,
    offsets_of,
    plain_array,
    to_ids,
    to_numbers,
    zero_filled,
)


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a row group.

    Attributes:
        column: Returns a column of the row group.
        rows: The range of rows in the row group.
        where: Returns the name in messages of a row, given its number, or of the row group, given None. Unset: the rows
            belong to no file.
    """

    column: Column
    rows: range
    where: Callable[[int | None], str] | None = None

    def array(self, name: str) -> pa.Array:
        """Returns a column of these rows as plain values (`to_plain`)."""
        return plain_array(self.column(name).slice(self.rows.start, len(self.rows)))

    def numbers(self, name: str) -> pa.Array:
        """Returns a column of these rows as numbers."""
        return to_numbers(self.array(name))

    def ids(self, name: str) -> pa.Array:
        """Returns a column of these rows as integers, strings or lists of either."""
        return self.to_ids(name, self.array(name))

    def to_ids(self, name: str, array: pa.Array) -> pa.Array:
        """Returns plain values of a column as integers, strings or lists of either."""
        try:
            return to_ids(array)
        except pa.ArrowInvalid as error:
            self.refuse(f"column '{name}': an id has more than 64 bits ({error}); ids are 64-bit integers or strings")

    def refuse(self, message: str, row: int | None = None) -> NoReturn:
        """Raises InputError for a value. `row`, if known, counts from the beginning of the chunk."""
        number = None if row is None else row_in_file(self.column, self.rows.start + row)
        if self.where:
            raise InputError(f"{self.where(number)}, {message}")
        raise InputError(message if number is None else f"row {number}, {message}")

    def check(self, column: str, values: np.ndarray, good: np.ndarray, why: str) -> np.ndarray:
        """Returns the values of a column, `[R]`; raises an error that names the first bad value."""
        if not good.all():
            row = int(good.argmin())
            self.refuse(f"column '{column}': {values[row]} {why}", row)
        return values


def dense_values(name: str, feature: DenseFeature, chunk: Chunk) -> np.ndarray:
    """Returns the values of a dense feature, `[R]` float32, of vectors `[width, R]`.

    Raises:
        InputError: A value is not finite or not a time, or a vector has another length.
    """
    column = feature.column or name
    raw = _raw_vectors(name, feature, chunk) if feature.width else _raw_numbers(name, feature, chunk)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = transformed(raw, feature)
    if not (isfinite(values.max(initial=0)) and isfinite(values.min(initial=0))):  # faster than a mask
        why = f"has no finite value under the transform '{feature.transform}'"
        if feature.width:
            row, place = np.argwhere(~np.isfinite(values))[0]
            chunk.refuse(f"column '{column}': {raw[row, place]} at place {place} {why}", row)
        chunk.check(column, raw, np.isfinite(values), why)
    return values.T


def _raw_vectors(name: str, feature: DenseFeature, chunk: Chunk) -> np.ndarray:
    """Returns the vectors to transform, `[R, width]` float32."""
    column = feature.column or name
    vectors, lengths = filled_vectors(chunk.numbers(column), feature)
    if not (good := lengths == feature.width).all():
        row = int(good.argmin())
        chunk.refuse(
            f"column '{column}': {plural(int(lengths[row]), 'number')}, but data.dense.{name}.width is "
            f"{feature.width}; every vector needs that many",
            row,
        )
    return vectors


def _raw_numbers(name: str, feature: DenseFeature, chunk: Chunk) -> np.ndarray:
    """Returns the numbers to transform, or the finished values of `is_missing` and of times, `[R]` float32."""
    column = feature.column or name
    if feature.transform in TIMES:
        return number_of_time(*seconds_of(column, chunk), feature)
    if feature.expression:
        found = _expressed(name, feature, chunk)
    elif feature.lookup:
        found = _last_looked_up(column, feature, chunk)
    elif feature.overlap:
        found = overlaps(chunk.ids(column), chunk.ids(feature.overlap), feature.overlap_as)
    elif feature.transform == "is_missing":
        found = chunk.array(column)
    else:
        found = chunk.numbers(column)
    return null_flags(found) if feature.transform == "is_missing" else filled(found, feature)


def _expressed(name: str, feature: DenseFeature, chunk: Chunk) -> pa.Array:
    """Returns the results of a feature's expression, `[R]` float32; null without a finite one."""
    columns = {}
    for column in columns_of(name, feature):
        array = chunk.numbers(column)
        values, missing = zero_filled(array.cast(pa.float64(), safe=False)), is_missing(array)
        chunk.check(
            column, values, np.isfinite(values), f"is not finite; data.dense.{name}.expression takes no such number"
        )
        columns[column] = np.where(missing, np.nan, values)
    with np.errstate(over="ignore"):
        found = evaluated(str(feature.expression), columns, np).astype(np.float32)
    return pa.array(found, mask=~np.isfinite(found))


def _last_looked_up(column: str, feature: DenseFeature, chunk: Chunk) -> pa.Array:
    """Returns the last value of each row's key, `[R]` numbers; null without one."""
    keys, values = _keys_and_values(column, feature, chunk)
    lengths, numbers = list_lengths(keys), to_numbers(values.flatten())
    return last_of_each(numbers, are_of_key(keys.flatten(), chunk.ids(str(feature.lookup)), lengths), lengths)


def looked_up(column: str, feature: SparseFeature, chunk: Chunk) -> pa.Array:
    """Returns the ids that each row's key has, `[R]` lists.

    Raises:
        InputError: The lists of keys and ids differ in length.
    """
    keys, ids = _keys_and_values(column, feature, chunk)
    return chosen(ids, are_of_key(keys.flatten(), chunk.ids(str(feature.lookup)), list_lengths(keys)))


def _keys_and_values(column: str, feature: DenseFeature | SparseFeature, chunk: Chunk) -> tuple[pa.Array, pa.Array]:
    """Returns the keys of a lookup as lists of ids, and the values as lists, `[R]` each."""
    is_of_numbers = isinstance(feature, DenseFeature)
    if feature.lookup_in is None:
        keys, values = lists_of_map(chunk.array(column))
        return chunk.to_ids(column, keys), values if is_of_numbers else chunk.to_ids(column, values)
    keys = as_lists(chunk.ids(feature.lookup_in))
    values = as_lists(chunk.array(column) if is_of_numbers else chunk.ids(column))
    _check_lengths(column, list_lengths(values), feature.lookup_in, list_lengths(keys), "id", chunk)
    return keys, values


def single_ids(name: str, feature: SparseFeature, chunk: Chunk) -> pa.Array:
    """Returns the raw id of each row, before the rule of `feature.ids`, `[R]` integers or strings; null without an id.

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
        seconds, missing = seconds_of(column, chunk)
        return pa.array(part_of_time(seconds, feature.transform), mask=missing)
    return shifted(chunk.ids(column), feature.offset)


def seconds_of(column: str, chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Returns a column of times as whole seconds since 1970 in UTC, `[R]`, and which are missing, `[R]`.

    Raises:
        InputError: An integer is not a time.
    """
    array = chunk.array(column)
    seconds, missing = to_seconds(array)
    if pa.types.is_integer(array.type):
        chunk.check(column, seconds, are_times(seconds, missing), NO_TIME)
    return seconds, missing


def chosen(lists: pa.Array, stay: np.ndarray) -> pa.Array:
    """Returns lists with only some of their elements, `[R]` and `[N]`."""
    if stay.all():
        return lists
    offsets = offsets_of(list_lengths(lists))
    return pa.LargeListArray.from_arrays(offsets_of(stay)[offsets], lists.flatten().filter(pa.array(stay)))


def without_own(column: str, feature: SparseFeature, chunk: Chunk, lengths: np.ndarray) -> np.ndarray:
    """Returns which elements of lists stay because the id at their place is not that of the row, `[N]`.

    Args:
        column: The column of the lists.
        feature: The feature, with `without`.
        chunk: The rows.
        lengths: The lengths of the lists, `[R]`.

    Raises:
        InputError: The lists of ids differ in length.
    """
    compared, own = feature.without_in or column, chunk.ids(str(feature.without))
    ids = as_lists(chunk.ids(compared))
    _check_lengths(column, lengths, compared, list_lengths(ids), "id", chunk)
    ids = ids.flatten()
    of_row, of_lists = (as_integers(one).astype(np.int64) for one in (own, ids))
    unknown = np.repeat(is_missing(own), lengths) | is_missing(ids)
    return unknown | (of_lists != np.repeat(of_row, lengths))


def earlier(column: str, feature: SparseFeature, chunk: Chunk, lengths: np.ndarray) -> np.ndarray:
    """Returns which elements of lists have a time before the time of their row, `[N]`.

    Args:
        column: The column of the ids in the lists.
        feature: The feature, with `times` and `before`.
        chunk: The rows.
        lengths: The lengths of the lists, `[R]`.

    Raises:
        InputError: Lists of ids and times differ in length, a row has no time, or an integer is not a time.
    """
    times = as_lists(chunk.array(str(feature.times)))
    _check_lengths(column, lengths, str(feature.times), list_lengths(times), "time", chunk)
    now, unknown = seconds_of(str(feature.before), chunk)
    if unknown.any():
        chunk.refuse(f"column '{feature.before}': null is not allowed for the time of a sample", int(unknown.argmax()))
    of_ids, offsets = times.flatten(), offsets_of(lengths)
    seconds, missing = to_seconds(of_ids)
    if pa.types.is_integer(of_ids.type) and not (good := are_times(seconds, missing)).all():
        place = int(good.argmin())
        row = int(np.searchsorted(offsets, place, side="right")) - 1
        chunk.refuse(f"column '{feature.times}': {seconds[place]} {NO_TIME}", row)
    return are_earlier(seconds, np.repeat(now, lengths), feature.within_seconds) & ~missing


def weighted_lists(column: str, feature: SparseFeature, chunk: Chunk) -> pa.LargeListArray:
    """Returns the ids of each row with their weights, `[R]` lists; a single id becomes a list with one element.

    Of several columns, the weight is the product.

    Raises:
        InputError: An id has no weight, or a forbidden weight.
    """
    (ids, offsets, weights), *others = [_weights(column, name, feature, chunk) for name in feature.weight_columns]
    for *_, factor in others:
        weights = pc.multiply(weights, factor)  # pyrefly: ignore[missing-attribute]
        _check(ids, weights, offsets, " times ".join(feature.weight_columns), feature, chunk)
    return pa.LargeListArray.from_arrays(offsets, with_weights(ids, weights))


def _weights(column: str, name: str, feature: SparseFeature, chunk: Chunk) -> tuple[pa.Array, np.ndarray, pa.Array]:
    """Returns ids, `[N]`, where those of each row begin, `[R + 1]`, and their weights in a column, `[N]` float32."""
    ids, weights = aligned(chunk.ids(column), chunk.array(name))
    lengths = list_lengths(ids)
    _check_lengths(column, lengths, name, list_lengths(weights), "weight", chunk)
    offsets, ids = offsets_of(lengths), ids.flatten()
    weights = to_weights(weights.flatten())
    _check(ids, weights, offsets, name, feature, chunk)
    return ids, offsets, weights


def _check_lengths(column: str, lengths: np.ndarray, beside: str, found: np.ndarray, noun: str, chunk: Chunk) -> None:
    if not (good := lengths == found).all():
        row = int(good.argmin())
        chunk.refuse(
            f"column '{beside}': {plural(found[row], noun)} for {plural(lengths[row], 'id')} of '{column}'; each id "
            "needs one",
            row,
        )


def _check(
    ids: pa.Array, weights: pa.Array, offsets: np.ndarray, column: str, feature: SparseFeature, chunk: Chunk
) -> None:
    values = weights.to_numpy(zero_copy_only=False)  # nulls become NaN
    good = is_weight(values, feature.pooling, GREATEST)
    if ids.null_count:  # a null id is dropped with its weight
        good |= ids.is_null().to_numpy(zero_copy_only=False)
    if not good.all():
        place = int(good.argmin())
        value = "null" if weights[place].as_py() is None else values[place]
        chunk.refuse(
            f"column '{column}': {value} is not a weight; weights of ids are {allowed_weights(feature.pooling)}",
            int(np.searchsorted(offsets, place, side="right")) - 1,
        )
