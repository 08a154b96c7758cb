"""Columns of every Arrow type and layout, files of them, and the values that training should see."""

import datetime
import hashlib
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.batches.batch import Batch
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

EPOCH = datetime.date(1970, 1, 1)
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DECIMALS = (pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256)
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DATES = [pa.date32(), pa.date64()]
TIMES = [
    *(pa.timestamp(unit, zone) for unit, zone in product(UNITS, [None, "UTC", "Europe/Berlin"])),
    *(pa.duration(unit) for unit in UNITS),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]
DAYS = [datetime.date(2026, 1, 2), None, EPOCH, datetime.date(2001, 9, 9)]
TICKS = [1_767_312_000, None, 0, 86_399]

# Of each type four values, the second of them null.
INTEGRAL = {
    **{str(dtype): pa.array([7, None, 0, 100], dtype) for dtype in INTEGERS},
    "bool": pa.array([True, None, False, True]),
    **{str(make(7, 0)): pa.array([Decimal(7), None, Decimal(0), Decimal(1234567)], make(7, 0)) for make in DECIMALS},
    **{str(dtype): pa.array(DAYS, dtype) for dtype in DATES},
    **{str(dtype): pa.array(TICKS[-1:] + TICKS[1:], pa.int64()).cast(pa.int32()).cast(dtype) for dtype in TIMES[16:18]},
    **{str(dtype): pa.array(TICKS, pa.int64()).cast(dtype) for dtype in [*TIMES[:16], *TIMES[18:]]},
    "extension<bool8>": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0, 1], pa.int8())),
}
FRACTIONAL = {
    **{str(dtype): pa.array(np.array([1.5, 0, -2, 3.25]), mask=np.arange(4) == 1).cast(dtype) for dtype in FLOATS},
    **{
        str(make(7, 2)): pa.array([Decimal("1.25"), None, Decimal("-3.1"), Decimal(4)], make(7, 2)) for make in DECIMALS
    },
}
TEXTUAL = {
    **{str(dtype): pa.array(["b", None, "ü", "a long text beside a view"]).cast(dtype) for dtype in TEXTS},
    "binary without text": pa.array([b"\xff\xfe", None, b"\x00", b"a"]),
    "fixed_size_binary": pa.array([b"ab", None, b"\xff\x00", b"cd"], pa.binary(2)),
    "extension<uuid>": pa.array([b"0123456789abcdef", None, b"\xff" * 16, b"\x00" * 16], pa.uuid()),
    "extension<json>": pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "2", "3"])),
}
MEANINGLESS = {
    "struct": pa.array([{"a": 1}, None, {"a": 2}, {"a": 3}]),
    "map": pa.array([[("a", 1)], None, [], [("b", 2)]], pa.map_(pa.string(), pa.int32())),
    "sparse_union": pa.UnionArray.from_sparse(pa.array([0] * 4, pa.int8()), [pa.array([1, 2, 3, 4])]),
    "dense_union": pa.UnionArray.from_dense(
        pa.array([0] * 4, pa.int8()), pa.array([0, 1, 2, 3], pa.int32()), [pa.array([1, 2, 3, 4])]
    ),
    "interval": pa.array([(1, 2, 3), None, (0, 0, 0), (4, 5, 6)], pa.month_day_nano_interval()),
    "nested list": pa.array([[[1]], None, [], [[2, 3]]]),
    "list of structs": pa.array([[{"a": 1}], None, [], [{"a": 2}]]),
}
NUMERIC = INTEGRAL | FRACTIONAL
SINGLE = INTEGRAL | TEXTUAL
NULL = pa.nulls(4)
LISTS = {
    "list": pa.list_,
    "large_list": pa.large_list,
    "list_view": pa.list_view,
    "large_list_view": pa.large_list_view,
}


def runs(array: pa.Array) -> pa.Array:
    """Returns the values by runs, the first of which is two rows long, without its first row."""
    values = pa.concat_arrays([array.slice(0, 1), array]) if len(array) else array
    ends = pa.array(range(1, len(values) + 1), pa.int32())
    return pa.RunEndEncodedArray.from_arrays(ends, values).slice(1)


def coded(array: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(range(len(array)), pa.int8()), array)


def picked(array: pa.Array, places: list[int]) -> pa.Array:
    """Returns the values at these places; `take` has no kernel for views."""
    return pa.concat_arrays([array.slice(place, 1) for place in places])


def coded_without_nulls(array: pa.Array) -> pa.Array:
    """Returns a dictionary array whose nulls are among the indices; its first value is no null."""
    valid = [place if array[place].is_valid else None for place in range(len(array))]
    return pa.DictionaryArray.from_arrays(pa.array(valid, pa.uint16()), picked(array, [one or 0 for one in valid]))


LAYOUTS = {
    "plain": lambda array: array,
    "dictionary": coded,  # with a null among its values
    "dictionary without nulls": coded_without_nulls,
    "runs": runs,
    "chunks": lambda array: pa.chunked_array([array.slice(0, 1), array.slice(1, 0), array.slice(1)]),
    "slice": lambda array: pa.concat_arrays([array, array]).slice(4, 4),
    "chunks of dictionaries": lambda array: pa.chunked_array(
        [coded_without_nulls(array.slice(0, 2)), coded_without_nulls(array.slice(2))]
    ),
}
LAID_OUT = ("int32", "bool", "double", "decimal128(7, 0)", "date32[day]", "timestamp[us]", "string", "string_view")


def of_type(name: str) -> pa.Array:
    return (NUMERIC | TEXTUAL)[name]


def write(folder, columns: dict, name: str = "one") -> dict:
    """Writes one file, Parquet if it can hold all columns, else Arrow IPC; returns the configuration of its reader."""
    table = pa.table(columns)
    try:
        pq.write_table(table, folder / f"{name}.parquet")
        return {"train": [str(folder / f"{name}.parquet")]}
    except pa.ArrowException:
        (folder / f"{name}.parquet").unlink(missing_ok=True)
    batches = table.combine_chunks().to_batches() if table.num_rows else []
    with pa.ipc.new_file(folder / f"{name}.arrow", table.schema) as sink:
        for batch in batches:
            sink.write_batch(batch)
    return {"train": [str(folder / f"{name}.arrow")], "reader": "ipc_reader:IpcReader"}


def read(config: dict) -> Batch:
    """Returns all rows of the files as one batch."""
    data = DataConfig.model_validate({"labels": ["label"], "shuffle": False} | config)
    files = find_files("data.train", data.train, data)
    (batch,) = Loader(files, data, Lanes(files.rows, 1, files.rows), 0, 1, seed=0, shuffle=False).batches(0, 1)
    return batch


def columns(array, **more) -> dict:
    return {"x": array, "label": pa.array([0.0] * len(array), pa.float32()), **more}


def refusal(config: dict) -> str:
    with pytest.raises(InputError) as refused:
        read(config)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def ticks(array: pa.Array) -> list[int | None]:
    narrow = array.cast(pa.int32()) if pa.types.is_time32(array.type) else array
    values = narrow.cast(pa.int64()).to_pylist()
    if pa.types.is_duration(array.type) or array.type.unit != "s":
        return values
    return [None if value is None else value * 1000 for value in values]  # Parquet stores seconds as milliseconds


def numbers(array: pa.Array) -> list[float]:
    """Returns what a dense feature should be, by pyarrow's own casts and Python's numbers, -1 for a null."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_date(array.type):
        values = [None if day is None else (day - EPOCH).days for day in array.to_pylist()]
    elif pa.types.is_temporal(array.type):
        unit = "ms" if array.type.unit == "s" and not pa.types.is_duration(array.type) else array.type.unit
        values = [None if tick is None else tick / UNITS[unit] for tick in ticks(array)]
    else:
        values = array.cast(pa.float64()).to_pylist()
    return [-1.0 if value is None else float(np.float32(value)) for value in values]


def ids(array: pa.Array) -> list[int | None]:
    """Returns what single ids should be, taken modulo 1009 or, of strings, hashed."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_time(array.type) or pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type):
        values = ticks(array)
    else:
        values = array.to_pylist()
    return [None if value is None else an_id(value) for value in values]


def an_id(value) -> int:
    if isinstance(value, datetime.date):
        return (value - EPOCH).days % 1009
    if isinstance(value, str | bytes):
        text = value.encode() if isinstance(value, str) else value
        hashed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return splitmix64(hashed) % 1009
    return int(value) % 1009


def splitmix64(value: int) -> int:
    mask = 2**64 - 1
    x = (value + 0x9E3779B97F4A7C15) & mask
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
    return x ^ (x >> 31)


def rule(array: pa.Array) -> str:
    return "hash" if any(array is text for text in TEXTUAL.values()) else "modulo"


def bags(batch: Batch) -> list[list[int]]:
    return [part.tolist() for part in batch.sparse["x"].to_dense()]


def single(expected: list[int | None]) -> list[list[int]]:
    return [[] if one is None else [one] for one in expected]


def as_list(kind: str, lists: pa.LargeListArray, mask: pa.Array) -> pa.Array:
    """Returns lists as those of another kind, of which the mask makes some null."""
    index = pa.int64() if "large" in kind else pa.int32()
    if "view" in kind:
        factory = pa.LargeListViewArray if "large" in kind else pa.ListViewArray
        lengths = np.diff(lists.offsets).astype(index.to_pandas_dtype())
        return factory.from_arrays(lists.offsets[:-1].cast(index), pa.array(lengths), lists.values, mask=mask)
    factory = pa.LargeListArray if "large" in kind else pa.ListArray
    return factory.from_arrays(lists.offsets.cast(index), lists.values, mask=mask)
