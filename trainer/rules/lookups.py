"""Rules over several columns of a row: values looked up by a key, and the overlap of two lists of ids."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pydantic

from trainer.core.errors import InputError
from trainer.core.section import Section
from trainer.rules.hashing import as_integers
from trainer.rules.id_lists import one_each
from trainer.rules.plain_types import (
    as_lists,
    has_ids,
    is_list,
    is_missing,
    is_number,
    list_lengths,
    map_types,
    meaning,
    plain_type,
    to_plain,
)


class LookupKeys(Section):
    """The keys that look values up in a map of the row."""

    lookup: str | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """Column with a single id, which is looked up: the feature is made of the values that column has for this id. A
    null, or an id without a value, makes a null; of several values a dense feature takes the last. Unset: all."""
    lookup_in: str | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """Column with the list of ids that column's list of values goes with. Unset: column is a map from ids to values."""

    def check_lookup(self, key: str) -> None:
        """Refuses keys of a map that nothing is looked up in."""
        if self.lookup_in is not None and self.lookup is None:
            raise InputError(
                f"{key}.lookup_in is '{self.lookup_in}', but {key}.lookup is unset; name the column of the id to look "
                "up, or leave it out"
            )


class OverlapKeys(Section):
    """The keys of a number that compares two lists of ids."""

    overlap: str | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """Another column of ids, in lists or single: the feature is a number for the ids that column has in common with it.
    Each id counts once, and a null list is empty."""
    overlap_as: Literal["count", "share", "share_of_other", "jaccard", "any"] = pydantic.Field(
        "count", exclude_if=lambda value: value == "count"
    )
    """count is the number of common ids, any 1 if there are any, else 0. share divides the number by the ids of column,
    share_of_other by those of overlap, jaccard by the ids of both together; null if there are none to divide by."""

    def check_overlap(self, key: str) -> None:
        """Refuses a kind of overlap of nothing."""
        if self.overlap is None and self.overlap_as != "count":
            raise InputError(
                f"{key}.overlap_as is '{self.overlap_as}', but {key}.overlap is unset; name the other column, or leave "
                "it out"
            )


def check_lookup(file: str, schema: pa.Schema, column: str, key: str, feature: LookupKeys, of_ids: bool) -> None:
    """Refuses columns that are no map and key, or no lists of keys and values and key.

    Raises:
        InputError: The message names the column.
    """
    if feature.lookup is None:
        return
    has_map = feature.lookup_in is None
    keys, values = map_types(schema.field(column).type) if has_map else (None, None)
    kinds = [(column, is_list, f"a list of {'ids' if of_ids else 'numbers'}")]
    if has_map:
        wanted = f"a map, or {key}.lookup_in must name a list of its ids"
        kinds = [(column, pa.types.is_map, wanted)]
    else:
        kinds.append((str(feature.lookup_in), is_list, "a list of ids"))
    kinds.append((feature.lookup, lambda dtype: not is_list(dtype) and has_ids(dtype), "a single id"))
    for name, is_kind, wanted in kinds:
        dtype = schema.field(name).type
        if not (is_kind(plain_type(dtype)) or pa.types.is_null(plain_type(dtype))):
            raise _other_type(file, name, dtype, f"{key}.lookup is '{feature.lookup}'", wanted)
    if feature.lookup_in is not None:
        keys = _value_type(schema.field(feature.lookup_in).type)
        values = _value_type(schema.field(column).type)
        if not has_ids(keys):
            dtype = schema.field(feature.lookup_in).type
            raise _other_type(file, feature.lookup_in, dtype, f"{key}.lookup is '{feature.lookup}'", "a list of ids")
    if not (of_ids or is_number(values) or pa.types.is_null(plain_type(values))):
        raise _other_type(
            file, column, schema.field(column).type, f"{key}.lookup is '{feature.lookup}'", "one of numbers"
        )
    _check_alike(file, feature.lookup_in or column, keys, feature.lookup, schema, f"{key}.lookup looks up")


def check_overlap(file: str, schema: pa.Schema, column: str, key: str, feature: OverlapKeys) -> None:
    """Refuses columns without ids, and ids of another kind than those that they are compared with.

    Raises:
        InputError: The message names the column.
    """
    if feature.overlap is None:
        return
    for name in (column, feature.overlap):
        dtype = schema.field(name).type
        if not has_ids(dtype):
            raise _other_type(file, name, dtype, f"{key}.overlap is '{feature.overlap}'", "ids, in a list or single")
    _check_alike(file, column, schema.field(column).type, feature.overlap, schema, f"{key}.overlap compares")


def _other_type(file: str, name: str, dtype: pa.DataType, why: str, wanted: str) -> InputError:
    return InputError(f"{file}: column '{name}' is of type {dtype}, but {why}; it must be {wanted}")


def _check_alike(file: str, name: str, dtype: pa.DataType, other: str, schema: pa.Schema, rule: str) -> None:
    here, there = meaning(dtype, of_ids=True), meaning(schema.field(other).type, of_ids=True)
    if here and there and here != there:
        raise InputError(f"{file}: column '{name}' has {here}, but '{other}', which {rule}, {there}; write them alike")


def _value_type(dtype: pa.DataType) -> pa.DataType:
    plain = plain_type(dtype)
    return plain.value_type if is_list(plain) else plain


def lists_of_map(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns the keys and the values of maps as lists, `[R]` each; null lists for a column without values."""
    if not isinstance(array, pa.MapArray):
        return as_lists(array), as_lists(array)
    offsets = array.offsets.cast(pa.int64())  # which copies: a mask does not go with a slice of offsets
    keys, values = (
        pa.LargeListArray.from_arrays(offsets, to_plain(part), mask=array.is_null())
        for part in (array.keys, array.items)
    )
    return keys, values


def are_of_key(keys: pa.Array, key: pa.Array, lengths: np.ndarray) -> np.ndarray:
    """Returns which elements of lists of keys are the key of their row, `[N]`; a null is none.

    Args:
        keys: The elements of all lists, `[N]` integers or strings.
        key: The key of each row, `[R]` of the same kind.
        lengths: The lengths of the lists, `[R]`.
    """
    of_lists, of_row = (as_integers(one).astype(np.int64) for one in (keys, key))
    unknown = np.repeat(is_missing(key), lengths) | is_missing(keys)
    return ~unknown & (of_lists == np.repeat(of_row, lengths))


def last_of_each(values: pa.Array, stay: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """Returns the last value that stays of each list, `[N]` to `[R]`; null where none stays."""
    places = np.flatnonzero(stay)
    last = np.full(len(lengths), -1)
    np.maximum.at(last, np.repeat(np.arange(len(lengths)), lengths)[places], places)
    return values.take(pa.array(last, mask=last < 0))


def overlaps(one: pa.Array, other: pa.Array, overlap_as: str) -> pa.Array:
    """Returns the overlap of ids, in lists or single, of two columns, `[R]` float32, null where it is undefined."""
    rows = len(one)
    pairs = [_distinct(array) for array in (one, other)]
    first, second = (np.bincount(found[0], minlength=rows) for found in pairs)
    both = [np.concatenate(parts) for parts in zip(*pairs, strict=True)]
    order = np.lexsort(both[::-1])
    of_row, ids = (part[order] for part in both)
    twice = (of_row[1:] == of_row[:-1]) & (ids[1:] == ids[:-1])
    common = np.bincount(of_row[1:][twice], minlength=rows)
    over, under = overlap_parts(common, first, second, overlap_as)
    under = np.broadcast_to(under, over.shape)
    return pa.array((over / np.maximum(under, 1)).astype(np.float32), mask=under == 0)


def overlap_parts(common: Any, first: Any, second: Any, overlap_as: str) -> tuple[Any, Any]:
    """Returns what is divided by what for an overlap, of integers or arrays; without a divisor it is undefined.

    Args:
        common: The number of common ids.
        first: The number of ids of the first list.
        second: The number of ids of the other.
        overlap_as: The kind.
    """
    if overlap_as == "any":
        return 1 * (common > 0), 1
    divisors = {"count": 1, "share": first, "share_of_other": second, "jaccard": first + second - common}
    return common, divisors[overlap_as]


def _distinct(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row and the id of each different id of a row, `[N]` int64 each."""
    lists = array if is_list(array.type) else one_each(array)
    rows, ids = np.repeat(np.arange(len(lists)), list_lengths(lists)), lists.flatten()
    there = ~is_missing(ids)
    rows, ids = rows[there], as_integers(ids).astype(np.int64)[there]
    order = np.lexsort((ids, rows))
    rows, ids = rows[order], ids[order]
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]) | (ids[1:] != ids[:-1])
    return rows[new], ids[new]
