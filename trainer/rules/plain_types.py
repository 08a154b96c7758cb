"""Reduces Arrow's many types and layouts to the few that training uses: numbers, integers, strings, nulls.

Values are never changed, only their layout: dictionaries, runs, views, kinds of lists, and extension types.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FLOAT32 = pa.float32()
SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # a second in Arrow's units of time
WIDEST_DECIMAL = pa.decimal256(76, 0)
# By number: a chain of `pa.types` functions takes microseconds for each column of each window.
WHOLE = {pa.from_numpy_dtype(f"{kind}{size}").id for kind in "iu" for size in (1, 2, 4, 8)}
NUMBERS = WHOLE | {dtype.id for dtype in (pa.bool_(), pa.float16(), pa.float32(), pa.float64())}
STRINGS = {dtype.id for dtype in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())}
LISTS = {make(pa.null()).id for make in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)}
LISTS.add(pa.list_(pa.null(), 1).id)
INTEGERS = "where booleans, decimals without a fraction, dates and times count as integers"  # for messages


def plain_type(dtype: pa.DataType) -> pa.DataType:
    """Returns the type of a column's values without their layout; all lists are large lists."""
    if dtype.id in NUMBERS or pa.types.is_primitive(dtype):  # most columns
        return dtype
    if isinstance(dtype, pa.BaseExtensionType):
        return plain_type(dtype.storage_type)
    if pa.types.is_dictionary(dtype) or pa.types.is_run_end_encoded(dtype):
        return plain_type(dtype.value_type)
    if _has_lists(dtype):
        return pa.large_list(plain_type(dtype.value_type))
    if pa.types.is_string_view(dtype):
        return pa.large_string()
    if pa.types.is_binary_view(dtype) or pa.types.is_fixed_size_binary(dtype):
        return pa.large_binary()
    return dtype


def id_type(dtype: pa.DataType) -> pa.DataType:
    """Returns the type of a column's ids, alone or in lists. A type other than integers or strings means: no ids."""
    plain = plain_type(dtype)
    plain = plain.value_type if _has_lists(plain) else plain
    if pa.types.is_boolean(plain):
        return pa.int8()
    if pa.types.is_decimal(plain) and plain.scale == 0:
        return pa.int64()
    if pa.types.is_date(plain):
        return pa.int32()
    return _ticks(plain) if _is_time(plain) else plain


def is_list(dtype: pa.DataType) -> bool:
    """Returns whether a column holds a list of ids per row."""
    return _has_lists(plain_type(dtype))


def is_string(dtype: pa.DataType) -> bool:
    """Returns whether ids are text or bytes, dictionary-encoded or not."""
    return plain_type(dtype).id in STRINGS


def has_values(dtype: pa.DataType) -> bool:
    """Returns whether a column can hold a value, alone or in lists; a file without values writes the null type."""
    return not pa.types.is_null(id_type(dtype))


def has_ids(dtype: pa.DataType) -> bool:
    """Returns whether a column holds ids, in lists or not. A column without values counts."""
    found = id_type(dtype)
    return pa.types.is_integer(found) or is_string(found) or not has_values(dtype)


def map_types(dtype: pa.DataType) -> tuple[pa.DataType, pa.DataType]:
    """Returns the types of the keys and of the values of a map; null types for a column without values."""
    plain = plain_type(dtype)
    return (plain.key_type, plain.item_type) if pa.types.is_map(plain) else (pa.null(), pa.null())


def values_type(dtype: pa.DataType) -> pa.DataType:
    """Returns the type of a column from which values are looked up: of a map, lists of its values."""
    plain = plain_type(dtype)
    return pa.large_list(plain.item_type) if pa.types.is_map(plain) else dtype


def is_number(dtype: pa.DataType) -> bool:
    """Returns whether a column holds one number per row."""
    plain = plain_type(dtype)
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_date)
    return _is_time(plain) or any(kind(plain) for kind in kinds)


def is_moment(dtype: pa.DataType) -> bool:
    """Returns whether a column of a plain type holds dates, or times with a date."""
    return pa.types.is_date(dtype) or pa.types.is_timestamp(dtype)


def meaning(dtype: pa.DataType, of_ids: bool) -> str | None:
    """Returns the unit of a column's values, which must be the same in all files; None for a column without values."""
    dtype = values_type(dtype)
    if not has_values(dtype):
        return None
    plain = plain_type(dtype)
    plain = plain.value_type if _has_lists(plain) else plain
    if pa.types.is_date(plain):
        return "dates"
    if _is_time(plain):
        name = next(one for one in ("timestamp", "duration", "time") if str(plain).startswith(one))
        return f"{name}s in {plain.unit}" if of_ids else f"{name}s"  # numbers are in seconds, ids in the unit
    return "strings" if is_string(plain) else "integers" if of_ids else "numbers"


def meaning_in_lists(dtype: pa.DataType, of_ids: bool) -> str | None:
    """Returns the same as `meaning`, and whether the values are in lists."""
    found = meaning(dtype, of_ids)
    return f"lists of {found}" if found and is_list(dtype) else found


def to_plain(array: pa.Array) -> pa.Array:
    """Returns a column's values without their layout; strings may stay dictionary-encoded, and lists of any width."""
    if array.type.id in NUMBERS:
        return array
    if isinstance(array, pa.ExtensionArray):
        return to_plain(array.storage)
    if isinstance(array, pa.RunEndEncodedArray):
        # Not pyarrow's run_end_decode, which lacks views, decimals, lists and other types.
        places = np.searchsorted(array.run_ends, np.arange(len(array)) + array.offset, side="right")
        return to_plain(array.values).take(pa.array(places))
    if isinstance(array, pa.DictionaryArray):
        return _plain_dictionary(array)
    if _has_lists(array.type):
        simple = isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray)
        unchanged = simple and plain_type(array.type.value_type) == array.type.value_type
        return array if unchanged else _map_lists(to_plain, array)
    plain = plain_type(array.type)
    return array if plain == array.type else array.cast(plain)


def plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column without its layout, as in `to_plain`, in at least one chunk."""
    return pa.chunked_array([to_plain(chunk) for chunk in column.chunks or [column.combine_chunks()]])


def plain_array(column: pa.ChunkedArray) -> pa.Array:
    """Returns a column without its layout, as in `to_plain`, in one array."""
    return to_plain(column.chunk(0)) if column.num_chunks == 1 else plain_column(column).combine_chunks()


def to_numbers(array: pa.Array) -> pa.Array:
    """Returns plain values, in lists or not, as numbers or booleans: dates in days, times in seconds, both since 1970.

    Times of day count from midnight. Times with a zone are in UTC, as Arrow stores them.
    """
    dtype = array.type
    if dtype.id in NUMBERS:
        return array
    if _has_lists(dtype):
        return _map_lists(to_numbers, array)
    if pa.types.is_null(dtype):
        return array.cast(pa.float32())
    if pa.types.is_decimal(dtype):
        return array.cast(pa.float64())
    if pa.types.is_date(dtype):
        return to_ids(array)
    if _is_time(dtype):
        ticks = to_ids(array).cast(pa.float64(), safe=False)
        return pc.divide(ticks, float(SECOND[dtype.unit]))  # pyrefly: ignore[missing-attribute]
    return array


def to_float32(array: pa.Array) -> pa.Array:
    """Returns numbers as float32."""
    return array if array.type == FLOAT32 else pc.cast(array, FLOAT32, safe=False)


def to_ids(array: pa.Array) -> pa.Array:
    """Returns plain values, in lists or not, as integers or strings: dates in days, times in their own unit.

    Raises:
        pa.ArrowInvalid: A decimal has more than 64 bits.
    """
    dtype = array.type
    if dtype.id in WHOLE:
        return array
    if _has_lists(dtype):
        value = dtype.value_type
        return array if pa.types.is_integer(value) or is_string(value) else _map_lists(to_ids, array)
    if pa.types.is_null(dtype):
        return array.cast(pa.int32())
    if pa.types.is_boolean(dtype):
        return array.cast(pa.int8())
    if pa.types.is_decimal(dtype):
        return _to_integers(array)
    if pa.types.is_date(dtype):
        return array.cast(pa.date32(), safe=False).cast(pa.int32())
    return array.cast(_ticks(dtype)) if _is_time(dtype) else array


def as_lists(array: pa.Array) -> pa.Array:
    """Returns lists of ids; null lists for a column without values, which has no type."""
    return array if _has_lists(array.type) else pa.nulls(len(array), pa.large_list(pa.int32()))


def list_lengths(lists: pa.Array) -> np.ndarray:
    """Returns the lengths of lists, `[R]`; 0 for a null list."""
    lengths = pc.list_value_length(lists)  # pyrefly: ignore[missing-attribute]
    return lengths.fill_null(0).to_numpy(zero_copy_only=False)


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Returns where each list begins and the last list ends, `[R + 1]`, given their lengths, `[R]`."""
    return np.concatenate([[0], np.cumsum(lengths)])


def to_texts(array: pa.Array) -> list[Any]:
    """Returns plain strings or bytes, in lists or not, as text in Python, from which `bytes_of` makes the same bytes.

    A byte that is not UTF-8 becomes U+DC80 to U+DCFF, as by Python's error handler surrogateescape.
    """
    if is_list(array.type):
        texts, lengths = iter(to_texts(array.flatten())), array.value_lengths().to_pylist()
        return [None if length is None else [next(texts) for _ in range(length)] for length in lengths]
    found = (array.dictionary_decode() if pa.types.is_dictionary(array.type) else array).cast(pa.large_binary())
    return [None if one is None else one.decode(errors="surrogateescape") for one in found.to_pylist()]


def bytes_of(text: str) -> bytes:
    """Returns the bytes of text in UTF-8, and of U+DC80 to U+DCFF the bytes that they stand for.

    Raises:
        UnicodeEncodeError: The text has another surrogate, which is no character by itself.
    """
    return text.encode(errors="surrogateescape")


# By the arrays' buffers: `is_null().to_numpy()` takes ten times as long as `is_missing`, and `fill_null` 1.2
# (int64) to 1.7 times (float32) as long as `zero_filled`.


def is_missing(array: pa.Array) -> np.ndarray:
    """Returns which values are null, `[R]` bool."""
    bitmap = array.buffers()[0]
    if bitmap is None:
        return np.full(len(array), array.null_count > 0)  # an array of the null type has no bitmap
    whole_bytes, start = divmod(array.offset, 8)
    stored = np.frombuffer(bitmap, np.uint8, offset=whole_bytes)
    return np.unpackbits(stored, count=start + len(array), bitorder="little")[start:] == 0


def zero_filled(array: pa.Array) -> np.ndarray:
    """Returns numbers, `[R]`, with 0 in place of nulls."""
    if not array.null_count:
        return array.to_numpy(zero_copy_only=False)
    stored = pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)
    values = stored.to_numpy(zero_copy_only=False)  # the value under a null is arbitrary
    # Multiplied as integers, because infinity times 0 is not 0.
    return (values.view(f"i{values.itemsize}") * ~is_missing(array)).view(values.dtype)


def _has_lists(dtype: pa.DataType) -> bool:
    return dtype.id in LISTS


def _is_time(dtype: pa.DataType) -> bool:
    return pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype) or pa.types.is_time(dtype)


def _ticks(dtype: pa.DataType) -> pa.DataType:
    """Returns the integer type that stores times."""
    return pa.int32() if pa.types.is_time32(dtype) else pa.int64()


def _map_lists(change: Callable[[pa.Array], pa.Array], array: pa.Array) -> pa.LargeListArray:
    """Returns lists with changed elements; also for list views, whose own cast to lists loses elements after a null."""
    offsets = pa.array(offsets_of(list_lengths(array)), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, change(array.flatten()), mask=array.is_null())


def _plain_dictionary(array: pa.DictionaryArray) -> pa.Array:
    values, indices = to_plain(array.dictionary), array.indices
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        return values.take(indices)
    # The dictionary may hold a null, which null_count does not count. Wide indices leave room for the text that fills
    # nulls.
    indices = indices.cast(pa.int64())
    if values.null_count:
        present = values.is_valid().take(indices)
        indices = pc.if_else(present, indices, None)  # pyrefly: ignore[missing-attribute]
    return pa.DictionaryArray.from_arrays(indices, values.fill_null(""))


def _to_integers(array: pa.Array) -> pa.Array:
    """Returns decimals without a fraction as int64, or as uint64 if a value needs it."""
    wide = array.cast(WIDEST_DECIMAL)  # narrower decimals refuse wider integer types, even for small values
    try:
        return wide.cast(pa.int64())
    except pa.ArrowInvalid:
        return wide.cast(pa.uint64())
