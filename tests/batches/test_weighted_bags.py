"""Columns of weights of ids: their types and layouts, the rows that they follow, and what is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import load_text
from csv_files import csv_config, read_all

from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.columns import check_alike, check_columns, lists_of
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.optim.table_optimizers import check_table_optimizers

IDS = [[3, None, 5], [], None, [7, 8, 9, 1]]
WEIGHTS = [[0.5, None, -2.0], [], None, [1.0, 2.0, 0.0, 4.0]]
PAIRS = [[(3, 0.5), (5, -2.0)], [], [], [(7, 1.0), (8, 2.0), (9, 0.0), (1, 4.0)]]


def config(**feature) -> DataConfig:
    return DataConfig.model_validate({"sparse": {"id": {"rows": 10, "weights": "w"} | feature}})


def decoded(column: pa.Array, weights: pa.Array, order=None, **feature):
    """Returns the pairs of id and weight of each row."""
    table = pa.table({"id": column, "w": weights, "label": [0.0] * len(column)})
    data = config(**feature)
    check_columns("here", table.schema, data)
    assert lists_of(data, {table.schema: "here"}) == ("id",)
    chunk = Chunk(table.column, range(table.num_rows), "here, row {}".format)
    bags = decode(chunk, data, ["id"], order).bags["id"].to_pylist()
    return [[(pair["id"], pair["weight"]) for pair in bag] for bag in bags]


NUMBERS = [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.uint64(), pa.decimal128(14, 2), pa.bool_()]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_weights_are_numbers_of_any_type(dtype):
    weights = pa.array([[1, None, 0], [], None, [1, 0, 0, 1]], pa.list_(pa.int32())).cast(pa.list_(dtype))
    expected = [[(3, 1), (5, 0)], [], [], [(7, 1), (8, 0), (9, 0), (1, 1)]]
    assert decoded(pa.array(IDS), weights) == expected


LAYOUTS = [pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_view(pa.float32())]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("of_ids", [pa.list_(pa.int64()), pa.large_list(pa.uint8()), pa.list_view(pa.int32())], ids=str)
def test_layouts_of_lists_may_differ(layout, of_ids):
    ids = pa.array(IDS, of_ids)
    assert decoded(ids, pa.array(WEIGHTS, layout)) == PAIRS
    assert decoded(ids[1:], pa.array(WEIGHTS, layout)[1:]) == PAIRS[1:]
    assert decoded(ids, pa.array(WEIGHTS, layout), np.array([3, 0, 1, 2])) == [PAIRS[3], *PAIRS[:3]]


def test_lists_of_a_fixed_size():
    ids, weights = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)), pa.array([[0.5, 1], [], [2, 4]])
    assert decoded(ids, weights) == [[(1, 0.5), (2, 1)], [], [(3, 2), (4, 4)]]


@pytest.mark.parametrize(("keep", "kept"), [("last", slice(-2, None)), ("first", slice(2))])
def test_what_is_cut_off_a_list_takes_its_weights_along(keep, kept):
    assert decoded(pa.array(IDS), pa.array(WEIGHTS), max_ids=2, keep=keep) == [pairs[kept] for pairs in PAIRS]


def test_rules_of_ids_change_no_weight():
    texts = pa.array([["a", None, "b"], ["a"]]).cast(pa.list_(pa.dictionary(pa.int32(), pa.string())))
    ((a, of_a), (_, of_b)), ((again, of_again),) = decoded(texts, pa.array([[0.5, None, 2.0], [4.0]]), ids="hash")
    assert (again, of_a, of_b, of_again) == (a, 0.5, 2.0, 4.0)
    assert decoded(pa.array([[1, 2]]), pa.array([[0.5, 2.0]]), offset=3) == [[(4, 0.5), (5, 2.0)]]
    assert decoded(pa.array([[11, 25]]), pa.array([[0.5, 2.0]]), ids="modulo") == [[(1, 0.5), (5, 2.0)]]


def test_a_single_id_has_a_single_weight():
    assert decoded(pa.array([3, None, 4]), pa.array([0.5, 1.0, -2.0])) == [[(3, 0.5)], [], [(4, -2.0)]]
    assert decoded(pa.array([3, None]), pa.array([0.5, None])) == [[(3, 0.5)], []]


def test_columns_without_values_have_no_ids():
    nothing = pa.nulls(2)
    for ids, weights in ((nothing, nothing), (pa.array([[], None], pa.list_(pa.int8())), nothing)):
        assert decoded(ids, weights) == [[], []]
    assert decoded(nothing, pa.array([[], None], pa.list_(pa.float32()))) == [[], []]


WRONG_VALUES = {
    "a null": ([[1, 2]], [[1.0, None]], {}, "here, row 1, column 'w': null is not a weight; weights of ids are finite"),
    "no number": ([[1, 2]], [[1.0, float("nan")]], {}, "here, row 1, column 'w': nan is not a weight"),
    "infinite": ([[1, 2]], [[1e300, 1.0]], {}, "here, row 1, column 'w': inf is not a weight"),
    "below 0": (
        [[1, 2]],
        [[1.0, -0.5]],
        {"pooling": "mean"},
        "-0.5 is not a weight; weights of ids are finite and, for",
    ),
    "too few": ([[1, 2]], [[1.0]], {}, "here, row 1, column 'w': 1 weight for 2 ids of 'id'"),
    "too many": ([[]], [[1.0]], {}, "here, row 1, column 'w': 1 weight for 0 ids of 'id'"),
    "none": ([[4]], [None], {}, "here, row 1, column 'w': 0 weights for 1 id of 'id'"),
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_a_wrong_weight_is_named(case):
    ids, weights, feature, says = WRONG_VALUES[case]
    with pytest.raises(InputError, match=r"^here, row 1, ") as raised:
        decoded(pa.array([[1], *ids], pa.list_(pa.int64())), pa.array([[1.0], *weights]), **feature)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def decoded_product(ids, *factors, **feature):
    """Returns the pairs of id and weight of each row, of weights in several columns."""
    names = [f"w{place}" for place in range(len(factors))]
    table = pa.table({"id": ids, "label": [0.0] * len(ids)} | dict(zip(names, factors, strict=True)))
    data = config(weights=names, **feature)
    check_columns("here", table.schema, data)
    chunk = Chunk(table.column, range(table.num_rows), "here, row {}".format)
    return [[(one["id"], one["weight"]) for one in bag] for bag in decode(chunk, data, ["id"]).bags["id"].to_pylist()]


def test_the_weight_of_an_id_is_the_product_of_its_columns():
    ids = pa.array([[1, None, 2], [], None, [3, 4, 5]])
    factors = [[[0.1, None, 2.0], [], None, [3.0, 0.0, 5.0]], [[0.7, 1.0, -1.0], [], [], [1.0, 2.0, 0.5]]]
    exact = float(np.float32(0.1) * np.float32(0.7))
    expected = [[(1, exact), (2, -2.0)], [], [], [(4, 0.0), (5, 2.5)]]
    assert decoded_product(ids, *map(pa.array, factors), max_ids=2) == expected
    single = decoded_product(pa.array([3, None]), pa.array([2.0, None]), pa.array([5, 1]), pa.array([0.5, None]))
    assert single == [[(3, 5.0)], []]


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        ([[1.0, 2.0], [1.0]], "here, row 0, column 'w1': 1 weight for 2 ids of 'id'; each id needs one"),
        ([[1.0, 2.0], [1.0, None]], "here, row 0, column 'w1': null is not a weight; weights of ids are finite"),
        ([[1e30, 1.0], [1e30, 1.0]], "here, row 0, column 'w0 times w1': inf is not a weight; weights of ids are"),
    ],
)
def test_a_wrong_factor_of_a_weight_is_named(factors, says):
    with pytest.raises(InputError) as raised:
        decoded_product(pa.array([[1, 2]]), *(pa.array([one], pa.list_(pa.float32())) for one in factors))
    assert str(raised.value).startswith(says)


def test_a_factor_of_another_type_is_refused():
    schema = pa.schema(
        {"id": pa.list_(pa.int64()), "w": pa.list_(pa.float32()), "v": pa.list_(pa.string()), "label": pa.float32()}
    )
    with pytest.raises(InputError, match=r"column 'v' is of type list<.*string>; the weights of ids must be a number"):
        check_columns("here", schema, config(weights=["w", "v"]))


@pytest.mark.parametrize(
    ("weights", "says"), [([], "is []; name at"), (["w", "w"], "is ['w', 'w']; name at least one")]
)
def test_columns_of_weights_are_named_once(weights, says):
    with pytest.raises(ValueError, match="name at least one column, each once") as raised:
        config(weights=weights)
    assert f"data.sparse.id.weights {says}" in str(raised.value)


def test_a_single_id_without_a_weight_is_named():
    with pytest.raises(InputError, match=r"^here, row 2, column 'w': null is not a weight"):
        decoded(pa.array([3, None, 4]), pa.array([0.5, None, None]))


WRONG_TYPES = {
    "text": (pa.list_(pa.string()), "column 'w' is of type list<.*string>; the weights of ids must be a number, or"),
    "lists in lists": (pa.list_(pa.list_(pa.float32())), "the weights of ids must be a number, or a list of numbers"),
    "a number for a list": (pa.float32(), "column 'w' is of type float, but column 'id', whose ids it weighs, of type"),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_a_column_of_another_type_is_refused(case):
    dtype, says = WRONG_TYPES[case]
    schema = pa.schema({"id": pa.list_(pa.int64()), "w": dtype, "label": pa.float32()})
    with pytest.raises(InputError, match=says):
        check_columns("here", schema, config())


def test_a_missing_column_and_files_that_differ_are_refused():
    schemas = [
        pa.schema({"id": pa.list_(pa.int64()), "w": pa.list_(dtype), "label": pa.float32()})
        for dtype in (pa.float32(), pa.duration("s"))
    ]
    with pytest.raises(InputError, match=r"other: column 'w' has durations .* but numbers in here; make them alike"):
        check_alike(config(), dict(zip(schemas, ("here", "other"), strict=True)))
    with pytest.raises(InputError, match="here: no column 'w'"):
        check_columns("here", schemas[0].remove(1), config())


WRONG_KEYS = {
    "of raw ids": ("pooling = 'raw'\nmax_ids = 3", "data.sparse.x.weights is 'w', but data.sparse.x.pooling is 'raw'"),
    "of a cross": ("columns = ['a', 'b']\nids = 'hash'", "but data.sparse.x.columns makes ids, which have no weights"),
    "of buckets": ("buckets = [1.0]", "but data.sparse.x.buckets makes ids, which have no weights; leave one out"),
    "of times": ("transform = 'hour'", "but data.sparse.x.transform makes ids, which have no weights; leave one out"),
    "of labels": (
        "table = 't'\n[data]\nlabels = ['w']",
        "data.labels names 'w', which data.sparse.x.weights names too",
    ),
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_weights_that_cannot_be_are_refused(case, tmp_path):
    keys, says = WRONG_KEYS[case]
    with pytest.raises(InputError) as raised:
        load_text(tmp_path, f"[data.sparse.x]\nrows = 24\nweights = 'w'\n{keys}")
    assert says in str(raised.value)


def test_optimizers_that_turn_weights_of_0_into_nan_are_refused_on_a_gpu():
    tree = {"data": {"sparse": {"x": {"rows": 5, "weights": "w"}}}, "optimizer": {"sparse": {"name": "lamb"}}}
    with pytest.raises(InputError, match=r"data\.sparse\.x\.weights is 'w', but 'lamb', the optimizer of table 'x'"):
        check_table_optimizers(Config.model_validate(tree), "cuda")
    check_table_optimizers(Config.model_validate(tree), "cpu")


def test_batches_weigh_the_ids_of_every_feature(tmp_path):
    """A weight where there is one, 1 elsewhere, and for a mean its part of the sum of the sample's weights."""
    columns = {
        "summed": [[1, 2], [], [3]],
        "summed_weights": [[0.5, -2.0], [], [4.0]],
        "averaged": [[1, 2, 3], [4, 5], None],
        "averaged_weights": [[1.0, 2.0, 5.0], [0.0, 0.0], None],
        "plain": [[1, 2], None, [4]],
        "plain_mean": [[1, 2, 3, 4], [5], []],
        "single": [7, None, 8],
    }
    pq.write_table(pa.table(columns | {"label": [0.0, 1.0, 0.0]}), tmp_path / "rows.parquet")
    sparse = {
        "summed": {"weights": "summed_weights"},
        "averaged": {"weights": "averaged_weights", "pooling": "mean"},
        "plain": {},
        "plain_mean": {"pooling": "mean"},
        "single": {},
    }
    keys = {name: {"rows": 10} | feature for name, feature in sparse.items()}
    data = DataConfig.model_validate({"train": [str(tmp_path)], "global_batch_size": 4, "sparse": keys})
    files = find_files("data.train", data.train, data)
    loader = Loader(files, data, Lanes(files.rows, 1, 4), 0, 1, 0, False)
    (batch,) = loader.batches(0, 1)
    expected = {
        "summed": [0.5, -2.0, 4.0],
        "averaged": [1 / 8, 2 / 8, 5 / 8, 0.0, 0.0],
        "plain": [1, 1, 1],
        "plain_mean": [0.25] * 4 + [1],
        "single": [1, 1],
    }
    assert {name: batch.sparse[name].weights().tolist() for name in keys} == expected
    halves = batch.split(2)
    assert [half.sparse["averaged"].weights().tolist() for half in halves] == [expected["averaged"], []]
    assert [half.sparse["summed"].weights().tolist() for half in halves] == [[0.5, -2.0], [4.0]]


def test_a_broken_list_of_weights_in_csv_is_named(tmp_path):
    file = tmp_path / "rows.csv"
    lists = {"csv": {"lists": ["id", "w"]}, "sparse": {"id": {"rows": 10, "weights": "w"}}, "dense": {}}
    data = csv_config(tmp_path / "cache", **lists)
    file.write_text("id,w,label\n1|2,0.5|2,1\n,,0\n3,4,1\n")
    found = read_all(file, data)
    assert found["w"].to_pylist() == [[0.5, 2.0], None, [4.0]]
    file.write_text("id,w,label\n1|2,0.5|2,1\n3|4,0.5|x,1\n")
    with pytest.raises(InputError, match=r"line 3, column 'w': '0\.5\|x' is not a list of numbers with '\|' between"):
        read_all(file, data)
