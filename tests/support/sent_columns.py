"""Columns as a client sends them to an export: plain values by Python and pyarrow's own casts, not by the trainer's."""

import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

EPOCH = datetime.date(1970, 1, 1)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


class Ticks(NamedTuple):
    """A time in the unit of its column."""

    number: int
    per_second: int


def sent_columns(table: pa.Table, signature: dict[str, Any], is_text: bool) -> dict[str, list]:
    """Returns the columns that an export takes, of a table as it was read from its files; of CSV files it is text."""
    kinds = {column["name"]: (column["kind"], column["type"]) for column in signature["columns"]}
    if is_text:
        return {name: [_parsed(text, *kinds[name]) for text in table[name].to_pylist()] for name in kinds}
    return {name: [_sent(value, kind) for value in _values(table[name])] for name, (kind, _) in kinds.items()}


def _parsed(text: str | None, kind: str, dtype: str) -> Any:
    if text is None:
        return None
    if kind == "list":
        return [_parsed(one, "id", dtype) for one in text.split("|")]
    return float(text) if kind == "number" else text if dtype == "string" else int(text)


def _values(column: pa.ChunkedArray) -> list:
    """Returns values, of which times are `Ticks`."""
    return [value for chunk in column.chunks for value in _of_array(chunk)]


def _of_array(array: pa.Array) -> list:
    if isinstance(array, pa.RunEndEncodedArray):
        ends, values = array.run_ends.to_pylist(), _of_array(array.values)
        places = (next(i for i, end in enumerate(ends) if end > array.offset + row) for row in range(len(array)))
        return [values[place] for place in places]
    if isinstance(array, pa.DictionaryArray):
        values = _of_array(array.dictionary)
        return [None if place is None else values[place] for place in array.indices.to_pylist()]
    if "list" in str(array.type) and hasattr(array.type, "value_type"):
        return [None if one.values is None else _of_array(one.values) for one in array]
    dtype = array.type
    if pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype) or pa.types.is_time(dtype):
        ticks = array.cast(pa.int32()).to_pylist() if pa.types.is_time32(dtype) else array.cast(pa.int64()).to_pylist()
        return [None if one is None else Ticks(one, PER_SECOND[dtype.unit]) for one in ticks]
    if pa.types.is_string(dtype):
        array = array.view(pa.binary())  # as it need not be UTF-8
    return [one.decode(errors="surrogateescape") if isinstance(one, bytes) else one for one in array.to_pylist()]


def _sent(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return [_sent(one, kind) for one in value]
    if isinstance(value, datetime.date):
        return value.isoformat() if kind == "time" else (value - EPOCH).days
    if isinstance(value, Decimal):
        return float(value) if kind == "number" else int(value)
    if isinstance(value, Ticks):
        seconds = value.number / value.per_second
        return {"number": seconds, "time": value.number // value.per_second}.get(kind, value.number)
    return int(value) if isinstance(value, bool) and kind != "number" else value
