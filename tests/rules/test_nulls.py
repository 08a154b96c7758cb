"""Nulls of arrays and of slices of them, beside pyarrow's own."""

import numpy as np
import pyarrow as pa
import pytest

from trainer.rules.plain_types import is_missing, zero_filled

TYPES = [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]


def some_nulls(dtype: pa.DataType, rows: int = 40) -> pa.Array:
    random = np.random.default_rng(0)
    return pa.array(random.integers(0, 100, rows).astype(dtype.to_pandas_dtype()), mask=random.random(rows) < 0.3)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("start", "length"), [(0, 40), (1, 39), (7, 9), (8, 8), (17, 23), (40, 0)])
def test_any_slice(dtype, start, length):
    part = some_nulls(dtype).slice(start, length)
    assert is_missing(part).tolist() == part.is_null().to_pylist()
    assert zero_filled(part).dtype == dtype.to_pandas_dtype()
    assert zero_filled(part).tolist() == [value or 0 for value in part.to_pylist()]


@pytest.mark.parametrize("array", [pa.array([1, 2]), pa.array([], pa.int64()), pa.nulls(3), pa.array(["a", None])])
def test_no_nulls_only_nulls_and_strings(array):
    assert is_missing(array).tolist() == array.is_null().to_pylist()


def test_what_lies_under_a_null_is_never_seen():
    hidden = pa.array(np.array([np.nan, 1.5, np.inf, -0.0], np.float32), mask=np.array([True, False, True, False]))
    assert zero_filled(hidden).tolist() == [0, 1.5, 0, 0]
    assert zero_filled(pa.array([2**63 - 1, 5], mask=np.array([True, False]))).tolist() == [0, 5]
