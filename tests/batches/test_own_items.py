"""Lists without the id of their own row, like a loop over rows and ids, in training and in exports alike."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest

from torchx_recsys.apps.export.load import ColumnError, _Reader
from torchx_recsys.apps.export.signature import items_in, signature
from torchx_recsys.apps.recommend.sides import sides_of
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.columns import check_columns
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

ROWS, ITEMS = 96, 8
SEEN = {"rows": ITEMS, "without": "item"}
STARS = {"rows": 6, "without": "item", "without_in": "seen"}


def config(seen=SEEN, stars=STARS) -> DataConfig:
    return DataConfig.model_validate({"sparse": {"item": {"rows": ITEMS}, "seen": seen, "stars": stars}})


def columns(seed=0):
    """Returns items, lists of items that have the row's own in any place, and stars beside them; nulls among all."""
    random = np.random.default_rng(seed)
    items = [None if row % 13 == 5 else int(one) for row, one in enumerate(random.integers(0, ITEMS, ROWS))]
    lengths = random.integers(0, 9, ROWS)
    seen = [[None if random.random() < 0.1 else int(one) for one in random.integers(0, ITEMS, n)] for n in lengths]
    stars = [random.integers(0, 6, n).tolist() for n in lengths]
    return {"item": items, "seen": seen, "stars": stars, "label": [0.0] * ROWS}


def expected(table, name):
    """Returns the lists of a column without the places at which the row's own item stands in `seen`."""
    return [
        [one for one, id in zip(values, seen, strict=True) if one is not None and (own is None or id != own)]
        for own, values, seen in zip(table["item"], table[name], table["seen"], strict=True)
    ]


def decoded(table, data):
    table = pa.table(table)
    check_columns("here", table.schema, data)
    lists = [name for name in data.sparse if name != "item"]
    rows = decode(Chunk(table.column, range(table.num_rows), "here, row {}".format), data, lists)
    return {name: bag.to_pylist() for name, bag in rows.bags.items()}


@pytest.mark.parametrize("max_ids", [None, 3])
def test_the_id_of_the_row_is_left_out_wherever_it_stands(max_ids):
    table, data = columns(), config({**SEEN, "max_ids": max_ids}, {**STARS, "max_ids": max_ids})
    found = decoded(table, data)
    for name in ("seen", "stars"):
        assert found[name] == [one[-max_ids:] if max_ids else one for one in expected(table, name)]
    assert sum(map(len, found["stars"])) < sum(map(len, table["stars"]))


def test_weights_and_times_go_with_their_ids():
    table = {"item": [1], "seen": [[1, 2, 3, 2]], "stars": [[1, 2, 3, 4]], "w": [[0.5, 1.0, 1.5, 2.0]], "label": [0.0]}
    table |= {"at": [[10**9, 10**9, 10**9 + 9, 10**9]], "now": [10**9 + 5]}
    seen = {**SEEN, "weights": "w", "times": "at", "before": "now"}
    assert [(one["id"], one["weight"]) for one in decoded(table, config(seen))["seen"][0]] == [(2, 1.0), (2, 2.0)]


def test_text_is_compared_as_text():
    feature = {"rows": 50, "ids": "hash"}
    sparse = {"item": feature, "seen": feature | {"without": "item"}}
    table = {"item": ["a", None], "seen": [["b", "a", "c"], ["a"]], "label": [0.0] * 2}
    data = DataConfig.model_validate({"sparse": sparse})
    assert list(map(len, decoded(table, data)["seen"])) == [2, 1]


def test_a_step_has_the_same_ids_on_any_number_of_ranks(tmp_path):
    pq.write_table(pa.table(columns()), tmp_path / "rows.parquet", row_group_size=20)
    data = config().model_copy(update={"train": [str(tmp_path)]})
    files = find_files("data.train", data.train, data)

    def steps(rank, ranks):
        loader = Loader(files, data, Lanes(files.rows, 4, 16), rank, ranks, 3, True)
        return [[one.tolist() for one in batch.sparse["seen"].to_dense()] for batch in loader.batches(0, 6)]

    parts = [steps(rank, 4) for rank in range(4)]
    assert steps(0, 1) == [[row for part in parts for row in part[step]] for step in range(6)]


def entries(data, of_text=False):
    value = pa.string() if of_text else pa.int64()
    types = {"item": value, "seen": pa.list_(value), "stars": pa.list_(pa.int64())}
    return signature(data, types, ["seen", "stars"], [])["columns"]


@pytest.mark.parametrize("as_arrays", [False, True])
def test_the_loader_of_an_export_leaves_out_the_same(as_arrays):
    table, data = columns(), config({**SEEN, "max_ids": 3}, {**STARS, "max_ids": 3})
    if as_arrays:
        table["item"] = [0 if one is None else one for one in table["item"]]
    given = {"item": np.array(table["item"])} if as_arrays else {}
    read = _Reader("numpy", "ndarray", {})
    found = {}
    for entry in entries(data):
        found |= read(entry, table | given)
    for name in ("seen", "stars"):
        kept = [one[-3:] for one in expected(table, name)]
        assert found[f"{name}.values"].tolist() == [one for row in kept for one in row]
        assert found[f"{name}.lengths"].tolist() == list(map(len, kept))


def test_the_loader_compares_text_and_names_a_wrong_length():
    feature = {"rows": 50, "ids": "hash"}
    sparse = {"item": feature, "seen": feature | {"without": "item"}, "stars": STARS}
    _, seen, stars = entries(DataConfig.model_validate({"sparse": sparse}), of_text=True)
    read, given = _Reader("numpy", "ndarray", {}), {"item": [b"a"], "seen": [["b", "a", None]], "stars": [[1, 2]]}
    assert read(seen, given)["seen.lengths"].tolist() == [1]
    with pytest.raises(ColumnError, match=r"column 'seen', row 0: 3 ids for 2 values of 'stars'; each needs one"):
        read(stars, given)


def test_a_query_without_an_item_keeps_its_whole_history(tmp_path):
    """In recommendations and exports of vectors; a model that scores pairs leaves out the item of each pair."""
    sparse = {"item": {"rows": ITEMS, "pooling": "none", "max_ids": 1, "table": "items"}}
    sparse |= {"seen": SEEN | {"pooling": "none", "max_ids": 4, "table": "items"}}
    data = {"sparse": sparse, "groups": ["item"], "catalogue": {"items": ["items"], "id": "item", "negatives": 4}}
    model = {"name": "sasrec", "target": "item", "history": "seen", "item_features": ["item"]}
    tasks = {"label": {"loss": "sampled_softmax", "group": "item"}}
    finder = Config.model_validate({"data": data, "model": model, "tasks": tasks})
    sides = sides_of(finder, ["item"])
    assert (sides.query_columns, sorted(sides.item_columns)) == (["seen"], ["item"])
    assert items_in(finder)["items"]["columns"] == ["item"]
    ranker = Config.model_validate(
        {"data": {"sparse": sparse}, "model": {"name": "din", **dict(list(model.items())[1:3])}}
    )
    assert [*sides_of(ranker, ["item"]).both.sparse] == ["seen"]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"seen": [1]}, "column 'seen' is of type int64, but data.sparse.seen.without is 'item'; it must be a list of"),
        (
            {"item": [[1]]},
            "column 'item' is of type list<item: int64>, but data.sparse.seen.without is 'item'; it must",
        ),
        ({"stars": [2]}, "column 'stars' is of type int64, but data.sparse.stars.without is 'item'; it must be a list"),
        (
            {"item": ["a"]},
            "column 'seen' has integers, but 'item', which data.sparse.seen.without takes out of it, str",
        ),
        ({"stars": [[1, 2]]}, "here, row 0, column 'seen': 1 id for 2 ids of 'stars'; each id needs one"),
    ],
)
def test_a_wrong_column_is_named(table, says):
    given = {"item": [1], "seen": [[1]], "stars": [[2]], "label": [0.0]} | table
    item = {"rows": 9, "ids": "hash"} if given["item"] == ["a"] else {"rows": 9}
    data = DataConfig.model_validate({"sparse": {"item": item, "seen": SEEN, "stars": STARS}})
    with pytest.raises(InputError) as raised:
        decoded(given, data)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ({"without": "itm"}, "data.sparse.seen.without is 'itm', which no sparse feature has; did you mean 'item'?"),
        (
            {"without_in": "sen"},
            "data.sparse.seen.without_in is 'sen', which no sparse feature has; did you mean 'seen'?",
        ),
        (
            {"without": None, "without_in": "seen"},
            "data.sparse.seen.without_in is 'seen', but data.sparse.seen.without is",
        ),
        (
            {"transform": "hour", "rows": 24},
            "data.sparse.seen.without is 'item', which chooses ids of a list, but data.sparse.seen.",
        ),
    ],
)
def test_keys_that_do_not_go_together_are_named(seen, says):
    with pytest.raises(pydantic.ValidationError) as raised:
        config(SEEN | seen)
    assert says in str(raised.value)
