"""What becomes of a column: values, nulls, ids of every type, and messages about what is not allowed."""

import hashlib
import math

import numpy as np
import pyarrow as pa
import pytest

from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.rows import NO_ID, Rows
from trainer.config.data import DataConfig
from trainer.rules.plain_types import is_list

MASK = 2**64 - 1
INT_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


def mixed(value: int) -> int:
    """splitmix64 in Python's integers; of 0 it is 0xE220A8397B1DCDAF, as published."""
    x = (value + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def hashed_text(text: str, rows: int) -> int:
    return mixed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")) % rows


def decode_table(table: pa.Table, config: DataConfig, order: np.ndarray | None = None) -> Rows:
    lists = [name for name in config.sparse if is_list(table.schema.field(name).type)]
    return decode(Chunk(table.column, range(table.num_rows)), config, lists, order)


def sparse(column: pa.Array | pa.ChunkedArray, order=None, **feature) -> Rows:
    table = pa.table({"id": column, "label": pa.array([0.0] * len(column))})
    return decode_table(table, DataConfig(sparse={"id": {"rows": 10} | feature}), order)


def dense(values, order=None, dtype=None, **feature) -> np.ndarray:
    table = pa.table({"x": pa.array(values, dtype), "label": pa.array([0] * len(values), pa.int8())})
    return decode_table(table, DataConfig(dense={"x": feature}), order).numbers[0]


def lists(bags: pa.LargeListArray) -> list[list[int]]:
    return bags.to_pylist()


@pytest.mark.parametrize("dtype", INT_TYPES)
def test_single_ids(dtype):
    rows = sparse(pa.array([3, None, 0, 9], dtype))
    assert rows.ids.tolist() == [[3, NO_ID, 0, 9]]
    assert rows.ids.dtype == np.int32
    assert sparse(pa.array([3, 1], dtype), np.array([1, 0])).ids.tolist() == [[1, 3]]


@pytest.mark.parametrize("dtype", INT_TYPES)
def test_modulo_wraps(dtype):
    values = [0, 99, 100, 127] if str(dtype).startswith("uint") else [0, 99, 100, -1, -128]
    assert sparse(pa.array(values, dtype), rows=100, ids="modulo").ids[0].tolist() == [value % 100 for value in values]
    wide = sparse(pa.array([127, *values], dtype), rows=2**31 - 1, ids="modulo").ids[0]
    assert wide.tolist() == [value % (2**31 - 1) for value in [127, *values]]


def test_modulo_of_the_largest_ids():
    assert sparse(pa.array([2**64 - 1], pa.uint64()), rows=1000, ids="modulo").ids[0, 0] == (2**64 - 1) % 1000
    assert sparse(pa.array([-(2**63)], pa.int64()), rows=1000, ids="modulo").ids[0, 0] == -(2**63) % 1000


@pytest.mark.parametrize("top", [2**32 - 1, 2**32, 2**31 - 1, 2**31, 2**63 - 1])
def test_modulo_of_ids_of_about_32_bits_with_nulls(top):
    values = [top, None, 5, top - 7, 0, None]
    for rows in (1, 1000, 2**31 - 1):
        found = sparse(pa.array(values, pa.int64()), rows=rows, ids="modulo").ids[0]
        assert found.tolist() == [NO_ID if value is None else value % rows for value in values]


@pytest.mark.parametrize("dtype", [pa.int32(), pa.int64()])
def test_hash_is_splitmix64_whatever_the_width(dtype):
    values = [0, 1, 2, 12345, -1, -7]
    found = sparse(pa.array(values, dtype), rows=1000, ids="hash").ids[0].tolist()
    assert found == [mixed(value & MASK) % 1000 for value in values]
    assert found == [535, 465, 110, 944, 936, 752]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "ü", "a"]),
        pa.array(["a", None, "ü", "a"], pa.large_string()),
        pa.array(["a", None, "ü", "a"]).dictionary_encode(),
        pa.chunked_array([pa.array(["a", None]).dictionary_encode(), pa.array(["ü", "a"]).dictionary_encode()]),
    ],
    ids=["string", "large_string", "dictionary", "two dictionaries"],
)
def test_hash_of_text(column):
    a, u = hashed_text("a", 1000), hashed_text("ü", 1000)
    assert sparse(column, rows=1000, ids="hash").ids[0].tolist() == [a, NO_ID, u, a]
    assert (a, u) == (423, 841)


@pytest.mark.parametrize("text", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_columns_without_a_value(text):
    assert sparse(pa.array([None, None], text), ids="hash").ids.tolist() == [[NO_ID, NO_ID]]
    assert sparse(pa.array([], text), ids="hash").ids.shape == (1, 0)
    assert lists(sparse(pa.array([None, []], pa.list_(text)), ids="hash").bags["id"]) == [[], []]
    assert lists(sparse(pa.array([None, []], pa.list_(pa.int64()))).bags["id"]) == [[], []]


@pytest.mark.parametrize("dtype", [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int16(), 2)])
def test_lists_of_ids(dtype):
    column = pa.array([[9, 9], [1, 2], None, [3, None], [5, 6]], dtype)[1:]
    rows = sparse(column)
    assert rows.ids.shape == (0, 4)
    assert lists(rows.bags["id"]) == [[1, 2], [], [3], [5, 6]]
    assert lists(sparse(column, np.array([3, 0, 2, 1])).bags["id"]) == [[5, 6], [1, 2], [3], []]
    assert lists(sparse(column, rows=6, ids="modulo").bags["id"]) == [[1, 2], [], [3], [5, 0]]


@pytest.mark.parametrize("dtype", [pa.list_(pa.int64()), pa.large_list(pa.int32())])
def test_sequences_keep_their_last_ids(dtype):
    column = pa.array([[9, 9, 9], [1, 2, 3, 4], None, [5, None, 6, 7], [8], [], [2, 3]], dtype)[1:]
    keys = {"pooling": "none", "max_ids": 2}
    assert lists(sparse(column, **keys).bags["id"]) == [[3, 4], [], [6, 7], [8], [], [2, 3]]
    assert lists(sparse(column, np.array([5, 0, 2, 1, 3, 4]), **keys).bags["id"])[:2] == [[2, 3], [3, 4]]
    assert lists(sparse(column, pooling="none", max_ids=4).bags["id"])[0] == [1, 2, 3, 4]
    assert lists(sparse(column.slice(1, 1), **keys).bags["id"]) == [[]]


def test_lists_of_text():
    column = pa.array([["a", "b"], [None, "a"], None])
    a, b = hashed_text("a", 50), hashed_text("b", 50)
    assert lists(sparse(column, rows=50, ids="hash").bags["id"]) == [[a, b], [a], []]


def test_rows_slice_and_join():
    column = pa.array([[1], [2, 3], [], [4]])
    rows = sparse(column)
    joined = Rows.join(
        [rows.slice(2, 4), rows.slice(0, 2), Rows.padding(1, DataConfig(sparse={"id": {"rows": 1}}), ["id"])]
    )
    assert lists(joined.bags["id"]) == [[], [4], [1], [2, 3], []]
    assert joined.numbers[-1].tolist() == [1, 1, 1, 1, 0]


def test_rows_of_several_parts_are_gathered_as_from_their_join():
    rows, places = sparse(pa.array([[1], [2, 3], [], [4]])), np.array([3, 0, 2, 1])
    gathered, joined = Rows.gather([rows.slice(2, 4), rows.slice(0, 2)], places), Rows.join([rows.slice(2, 4), rows])
    assert lists(gathered.bags["id"]) == lists(joined.take(places).bags["id"]) == [[2, 3], [], [1], [4]]
    numbers = Rows.gather([rows, rows], np.arange(8)[::-1]).numbers
    assert np.array_equal(numbers, np.concatenate([rows.numbers, rows.numbers], axis=1)[:, ::-1])


@pytest.mark.parametrize(
    ("transform", "function"), [("none", lambda x: x), ("log1p", math.log1p), ("log3", lambda x: math.log(x + 3))]
)
@pytest.mark.parametrize("dtype", [pa.float32(), pa.float64(), pa.int32(), pa.int64(), pa.uint8()])
def test_dense(transform, function, dtype):
    found = dense([0, 5, None, 200], dtype=dtype, transform=transform, mean=0.5, std=2.0, missing=1.5)
    expected = [(function(1.5 if value is None else value) - 0.5) / 2 for value in (0, 5, None, 200)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


def test_dense_order_and_booleans():
    assert dense([1.0, 2.0, 3.0], np.array([2, 0, 1])).tolist() == [3, 1, 2]
    assert dense([True, None, False], missing=0.25).tolist() == [1, 0.25, 0]
    assert dense([3e38, 3e38, -1.0]).tolist() == np.array([3e38, 3e38, -1], np.float32).tolist()


def test_a_class_is_the_place_of_its_value():
    table = pa.table({"cut": ["good", "fair"], "stars": pa.array([5, 1], pa.int8())})
    classes = {"cut": ["fair", "good"], "stars": [1, 3, 5]}
    config = DataConfig(labels=["cut", "stars"], numeric_labels=["stars"], classes=classes)
    assert decode_table(table, config).numbers.tolist() == [[1, 0], [2, 0], [1, 1]]


def test_labels_and_weights():
    table = pa.table({"a": [0, 1, 1], "b": [0.5, 0.0, 1.0], "w": pa.array([2, 0, 3], pa.int32())})
    rows = decode_table(table, DataConfig(labels=["b", "a"], weight="w"))
    assert rows.numbers.tolist() == [[0.5, 0, 1], [0, 1, 1], [2, 0, 3]]
    assert decode_table(table, DataConfig(labels=["a"])).numbers.tolist() == [[0, 1, 1], [1, 1, 1]]


def test_pieces_lie_behind_one_another():
    table = pa.table({"id": [[0], [1], [2], [3], [4]], "label": [0, 1, 0, 1, 1]})
    config = DataConfig(sparse={"id": {"rows": 5}})
    pieces = Rows.join([decode(Chunk(table.column, piece), config, ["id"]) for piece in (range(3, 5), range(1))])
    assert lists(pieces.bags["id"]) == [[3], [4], [0]]
    rows = pieces.take(np.array([2, 0, 1]))
    assert (lists(rows.bags["id"]), rows.numbers[0].tolist()) == ([[0], [3], [4]], [0, 1, 1])


def test_messages_count_rows_from_the_beginning_of_the_row_group():
    table = pa.table({"label": [0, 1, 0, 7]})
    with pytest.raises(ValueError, match="a file, row 3, column 'label': 7"):
        decode(Chunk(table.column, range(2, 4), "a file, row {}".format), DataConfig(), [])


def test_one_column_in_two_roles():
    table = pa.table({"x": pa.array([1, 2]), "label": pa.array([0, 1])})
    rows = decode_table(table, DataConfig(dense={"x": {}}, sparse={"x": {"rows": 5}}))
    assert (rows.numbers[0].tolist(), rows.ids.tolist()) == ([1, 2], [[1, 2]])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"id": [1, 10]},
            r"^row 1, column 'id': id 10 is outside \[0, 10\).*data\.sparse\.id\.rows.*'modulo' or 'hash'",
        ),
        ({"id": [1, -1]}, r"row 1, column 'id': id -1 is outside \[0, 10\)"),
        ({"id": pa.array([None, -128], pa.int8())}, r"row 1, column 'id': id -128 is outside"),
        ({"id": [[1], [3, 77]]}, r"^row 1, column 'id': id 77 is outside"),
        ({"id": [[], [None, 77, 5]]}, r"^row 1, column 'id': id 77 is outside"),
        ({"label": [0, 2]}, r"row 1, column 'label': 2\.0 is not a label; labels are in \[0, 1\]"),
        ({"label": [0.0, float("nan")]}, "row 1, column 'label': nan is not a label"),
        ({"label": [0, None]}, "row 1, column 'label': null is not allowed for a label"),
        ({"cut": ["fair", "poor"]}, "row 1, column 'cut': 'poor' is not in data.classes.cut; name it there"),
        ({"cut": ["good", None]}, "row 1, column 'cut': null is not allowed for a label"),
        ({"w": [0.5, -1.0]}, r"row 1, column 'w': -1\.0 is not a weight; weights are finite and at least 0"),
        ({"w": [math.inf, 1.0]}, "row 0, column 'w': inf is not a weight"),
        ({"w": [None, 1.0]}, "row 0, column 'w': null is not allowed for a weight"),
        ({"x": [1.0, -4.0]}, r"row 1, column 'x': -4\.0 has no finite value under the transform 'log3'"),
        ({"x": [-3, 1]}, r"row 0, column 'x': -3\.0 has no finite value"),
        ({"x": [math.nan, 1.0]}, "row 0, column 'x': nan has no finite value"),
        ({"x": [math.inf, -math.inf]}, "row 0, column 'x': inf has no finite value"),
    ],
)
def test_refused_values(columns, message):
    config = DataConfig(
        dense={"x": {"transform": "log3"}},
        sparse={"id": {"rows": 10}},
        weight="w",
        labels=["label", "cut"],
        classes={"cut": ["fair", "good"]},
    )
    good = {"x": [0.0, 1.0], "id": [1, 2], "label": [0, 1], "cut": ["good", "fair"], "w": [1.0, 1.0]}
    table = pa.table(good | columns)
    with pytest.raises(ValueError, match=message):
        decode_table(table, config)
