"""Expressions, lookups and overlaps, like a loop over the rows, in training and in the loader of an export."""

import numpy as np
import pyarrow as pa
import pytest
from looked_up import DENSE, EXPECTED, SPARSE, TYPES, columns, ids_of, pairs, rows_of, table_of

from torchx_recsys.apps.export.load import ColumnError, _Reader
from torchx_recsys.apps.export.reference import raw_columns
from torchx_recsys.apps.export.signature import signature
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature, check_dense, check_sparse
from trainer.core.errors import InputError
from trainer.data.columns import check_columns
from trainer.rules.hashing import hash_text
from trainer.rules.registry import id_rule

LISTS = [name for name in SPARSE if name != "item"]


def data_of(dense=DENSE, sparse=SPARSE) -> DataConfig:
    return DataConfig.model_validate({"dense": dense, "sparse": sparse})


def chunk_of(table: pa.Table) -> Chunk:
    return Chunk(table.column, range(table.num_rows), "here, row {}".format)


def decoded(table, data):
    """The numbers and the ids of a table, by feature."""
    check_columns("here", table.schema, data)
    rows = decode(chunk_of(table), data.model_copy(update={"labels": []}), [one for one in LISTS if one in data.sparse])
    return dict(zip(data.dense, rows.numbers, strict=False)), {name: bag.to_pylist() for name, bag in rows.bags.items()}


@pytest.fixture(scope="module", params=range(2))
def table(request):
    return columns(request.param)


def test_every_number_is_that_of_a_loop(table):
    found, _ = decoded(table_of(table), data_of())
    for name, function in EXPECTED.items():
        expected = [function(row) for row in rows_of(table)]
        np.testing.assert_allclose(found[name], expected, rtol=5e-7, atol=5e-7, err_msg=name)
        assert len({*expected}) > 1
    assert {*EXPECTED} == {*DENSE}


def expected_ids(table, name):
    rows = rows_of(table)
    if name == "of item":
        return [ids_of(pairs(row["items"], row["others beside"]), row["item"]) for row in rows]
    if name == "texts":
        return [hashed(name, ids_of(row["texts"] or (), row["item"])) for row in rows]
    shops = [ids_of(row["shops"] or (), row["country"]) for row in rows]
    return shops if name == "shops" else [hashed(name, one[-1:]) for one in shops]


def hashed(name, ids):
    numbers = hash_text(pa.array(ids)) if ids and isinstance(ids[0], str) else np.array(ids, np.int64)
    return id_rule(name, data_of().sparse[name]).rows_of(numbers).tolist() if ids else []


def test_every_list_is_that_of_a_loop(table):
    _, found = decoded(table_of(table), data_of())
    for name in LISTS:
        assert found[name] == expected_ids(table, name), name
        assert max(map(len, found[name])) > (name != "last shop")


def test_other_layouts_have_the_same_values(table):
    """Slices, chunks, and maps from encoded text."""
    plain, whole = table_of(table), data_of()
    prices = plain["prices"].combine_chunks()
    keys, value = prices.keys.dictionary_encode(), pa.field("value", pa.float32())
    elements = pa.StructArray.from_arrays([keys, prices.items], fields=[pa.field("key", keys.type, False), value])
    buffers = [prices.buffers()[0], prices.buffers()[1]]
    kind = pa.map_(keys.type, pa.float32())
    encoded = pa.MapArray.from_buffers(kind, len(prices), buffers, children=[elements])
    other = plain.set_column(plain.column_names.index("prices"), "prices", encoded)
    parts = pa.concat_tables([other.slice(0, 77), other.slice(77)])
    for start, rows in ((0, 300), (70, 100), (299, 1), (5, 0)):
        expected = {name: values[start : start + rows] for name, values in decoded(plain, whole)[0].items()}
        found, _ = decoded(parts.slice(start, rows), whole)
        for name in DENSE:
            assert found[name].tolist() == expected[name].tolist(), name


def test_columns_without_values_make_missing_values():
    rows = 3
    names = [name for name in TYPES if name not in ("now",)] + [
        "clicks",
        "views",
        "last seen",
        "country",
        "words",
        "others beside",
    ]
    table = pa.table(
        {"now": pa.array([10**9] * rows), "label": [0.0] * rows} | {name: pa.nulls(rows) for name in names}
    )
    numbers, ids = decoded(table, data_of())
    row = dict.fromkeys(names) | {"now": 10**9}
    for name, function in EXPECTED.items():
        np.testing.assert_allclose(numbers[name], [function(row)] * rows, rtol=1e-6)
    assert all(one == [[]] * rows for one in ids.values())


@pytest.fixture(scope="module")
def entries():
    arrow = table_of(columns())
    return signature(data_of(), {name: arrow.schema.field(name).type for name in arrow.column_names}, LISTS, [])[
        "columns"
    ]


def raw_features():
    """The numbers before all rules but that of nulls, which become -77."""
    keys = ("column", "lookup", "lookup_in", "overlap", "overlap_as")
    own = {
        name: {key: one[key] for key in keys if key in one} for name, one in DENSE.items() if "expression" not in one
    }
    return {name: one | {"missing": -77.0} for name, one in own.items()}


def check_loader(entries, given, table):
    """Compares what the loader of an export makes of columns with what training makes of a table of them."""
    read, found = _Reader("numpy", "ndarray", {}), {}
    for entry in entries:
        found |= read(entry, given)
    numbers, _ = decoded(table_of(table), data_of(raw_features(), {}))
    for name, values in numbers.items():
        np.testing.assert_array_equal(np.where(np.isnan(found[name]), -77, found[name]), values, err_msg=name)
    for name in LISTS:
        ids = [one for row in expected_ids(table, name) for one in row]
        assert id_rule(name, data_of().sparse[name]).rows_of(found[f"{name}.values"]).tolist() == ids, name
    return found


def test_the_loader_of_an_export_finds_the_same(table, entries):
    """Numbers of expressions stay columns, in float64: the program computes them."""
    given = raw_columns(chunk_of(table_of(table)), data_of())
    found = check_loader(entries, given, table)
    given |= {name: np.array(given[name], np.float64) for name in ("clicks", "views", "now", "last seen")}
    of_arrays = check_loader(entries, given, table)
    for name in ("rate.clicks", "since.last seen"):
        expected = np.array(table[name.partition(".")[2]], np.float64)
        for one in (found, of_arrays):
            assert one[name].dtype == np.float64
            np.testing.assert_array_equal(one[name], expected)


def test_maps_are_taken_as_objects(table, entries):
    maps = {name: [one and [*dict(one).items()] for one in table[name]] for name in ("prices", "shops", "texts")}
    given = raw_columns(chunk_of(table_of(table | maps)), data_of())
    for name in maps:
        given[name] = [None if one is None else {str(key): value for key, value in one} for one in given[name]]
    check_loader(entries, given, table | maps)


SENT = {
    "no map": ({"prices": [3]}, "column 'prices', row 0: 3 is not a map; send an object, or a list of pairs"),
    "no pairs": ({"prices": [[1, 2]]}, "column 'prices', row 0: [1, 2] is not a map"),
    "a value of text": ({"prices": [{"a": "x"}]}, "column 'prices', row 0: 'x' is not a number"),
    "a key of another kind": ({"country": [3]}, "column 'country', row 0: 3 is not a string"),
    "a map's key of another kind": ({"texts": [{"a": "b"}]}, "column 'texts', row 0: 'a' is not an integer"),
    "other lengths": ({"scores": [[1.0, 2.0]]}, "column 'items', row 0: 1 id for 2 values of 'scores'; each needs one"),
    "no ids": ({"others": [["a"]]}, "column 'others', row 0: 'a' is not an integer"),
    "an infinite number": ({"clicks": [float("inf")]}, "column 'clicks', row 0: inf has no finite value"),
}
ROW = {name: [None] for name in columns()} | {"country": ["a"], "item": [1], "items": [[1]], "scores": [[1.0]]}


@pytest.mark.parametrize(("changes", "words"), SENT.values(), ids=SENT)
def test_wrong_values_that_are_sent(entries, changes, words):
    read = _Reader("numpy", "ndarray", {})
    with pytest.raises(ColumnError) as raised:
        [read(entry, ROW | changes) for entry in entries]
    assert words in str(raised.value)


KEYS = {
    "two ways": ({"expression": "a", "overlap": "b"}, "x.expression and data.dense.x.overlap are both set"),
    "a column beside": ({"expression": "a", "column": "b"}, "x.column is 'b', but data.dense.x.expression names the"),
    "a logarithm": ({"expression": "a", "transform": "log1p"}, "one of none, is_missing; write it into the expression"),
    "an hour": ({"lookup": "a", "transform": "hour"}, "x.transform is 'hour', but with data.dense.x.lookup it must be"),
    "nothing to look up": ({"lookup_in": "a"}, "x.lookup_in is 'a', but data.dense.x.lookup is unset; name the"),
    "nothing to compare": ({"overlap_as": "any"}, "x.overlap_as is 'any', but data.dense.x.overlap is unset; name"),
}


@pytest.mark.parametrize(("keys", "words"), KEYS.values(), ids=KEYS)
def test_wrong_keys_of_numbers(keys, words):
    with pytest.raises(InputError) as raised:
        check_dense("x", DenseFeature.model_validate(keys))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "other", [{"weights": "b"}, {"without": "b"}, {"times": "b", "before": "c"}, {"buckets": [1.0]}]
)
def test_a_lookup_of_ids_goes_with_no_other_choice(other):
    with pytest.raises(InputError, match=r"data.sparse.x.lookup is 'a', which makes the ids, but data.sparse.x.\w+ is"):
        check_sparse("x", SparseFeature.model_validate({"rows": 9, "lookup": "a"} | other), {"x": ["b"]})


COLUMNS = {
    "an expression of text": (
        "dense",
        {"expression": "clicks + country"},
        "column 'country' is of type string; it must",
    ),
    "a lookup in a number": (
        "dense",
        {"column": "clicks", "lookup": "item"},
        "is 'item'; it must be a map, or data.dense.x.lookup_in must name a list of its ids",
    ),
    "a lookup in lists alone": (
        "sparse",
        {"column": "others", "lookup": "item"},
        "column 'others' is of type large_list<",
    ),
    "a lookup of a list": ("dense", {"column": "prices", "lookup": "words"}, "column 'words' is of type list<"),
    "a lookup in no list": (
        "dense",
        {"column": "scores", "lookup": "item", "lookup_in": "views"},
        "'views' is of type int64, but",
    ),
    "a lookup in numbers": (
        "dense",
        {"column": "scores", "lookup": "item", "lookup_in": "scores"},
        "it must be a list of ids",
    ),
    "numbers of text": ("dense", {"column": "texts", "lookup": "item"}, "column 'texts' is of type map<int32, string"),
    "keys of another kind": (
        "dense",
        {"column": "prices", "lookup": "item"},
        "column 'prices' has strings, but 'item', which data.dense.x.lookup looks up, integers; write them alike",
    ),
    "ids of numbers": ("sparse", {"column": "prices", "lookup": "country"}, "column 'prices' is of type large_list<"),
    "an overlap of numbers": ("dense", {"column": "scores", "overlap": "items"}, "column 'scores' is of type list<"),
    "an overlap of other kinds": (
        "dense",
        {"column": "items", "overlap": "words"},
        "column 'items' has integers, but 'words', which data.dense.x.overlap compares, strings",
    ),
    "a map as ids": ("sparse", {"column": "shops"}, "column 'shops' is of type map<string, int32"),
    "a map as a number": ("dense", {"column": "shops"}, "column 'shops' is of type map<string, int32"),
}


@pytest.mark.parametrize(("kind", "keys", "words"), COLUMNS.values(), ids=COLUMNS)
def test_wrong_columns(kind, keys, words):
    features = {"dense": {}, "sparse": {}} | {kind: {"x": keys | ({"rows": 50} if kind == "sparse" else {})}}
    with pytest.raises(InputError) as raised:
        check_columns("here", table_of(columns()).schema, data_of(**features))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_wrong_values():
    table = table_of(columns())
    infinite = table.set_column(0, "clicks", pa.array([1.0, float("inf")] * 150))
    with pytest.raises(
        InputError, match=r"here, row 1, column 'clicks': inf is not finite; data.dense.rate.expression"
    ):
        decoded(infinite, data_of({"rate": {"expression": "clicks / 2"}}, {}))
    place = table.column_names.index("scores")
    longer = table.set_column(place, "scores", pa.array([[1.0] * 9] * 300))
    with pytest.raises(InputError, match=r"here, row 0, column 'items': \d+ ids? for 9 ids of 'scores'; each id needs"):
        decoded(longer, data_of({"score": DENSE["score"]}, {}))


def test_a_result_beyond_float32_is_missing():
    table = pa.table({"a": [1e30, 1.0], "label": [0.0, 1.0]})
    found, _ = decoded(table, data_of({"x": {"expression": "a * 1e30", "missing": -1.0}}, {}))
    assert found["x"].tolist() == [-1.0, np.float32(1e30)]
