"""Kinds of columns: what Arrow's many types mean here, and one type for each kind to compute with."""

from typing import Literal

import pyarrow as pa

from trainer.data.plain_types import is_list, is_moment, plain_type

Kind = Literal["integer", "number", "text", "integers", "texts", "time", "empty", "other"]
COMPUTED: dict[Kind, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.large_string(),
    "integers": pa.large_list(pa.int64()),
    "texts": pa.large_list(pa.large_string()),
    "time": pa.int64(),
    "empty": pa.float64(),
}


def kind_of(dtype: pa.DataType) -> Kind:
    """Returns the kind of a column of a type; `other` cannot be measured, such as structs."""
    dtype = plain_type(dtype)
    if is_list(dtype):
        inner = kind_of(dtype.value_type)
        return "integers" if inner == "integer" else "texts" if inner == "text" else "other"
    if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
        return "integer"
    if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "number"
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return "text"
    if is_moment(dtype):
        return "time"
    return "empty" if pa.types.is_null(dtype) else "other"


def computed(array: pa.Array, kind: Kind) -> pa.Array:
    """Returns plain values in the type that their kind is computed in; integers above 63 bits wrap."""
    if array.type == COMPUTED[kind]:
        return array
    if pa.types.is_date32(array.type):
        array = array.cast(pa.date64())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(COMPUTED[kind], safe=False)
