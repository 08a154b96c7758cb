"""Exports with weights of ids answer as predictions do, and refuse the weights that training refuses."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from endpoint import Served
from exported import ONNX_ALONE, ask, export, parity_of
from jobs import config, launch

from torchx_recsys.apps.export.load import ColumnError, load
from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_export.py stands for all")

ROWS = 200
SPARSE = {
    "films": {"rows": 40, "weights": ["film_weights", "film_boosts", "film_ages"]},
    "shows": {"rows": 30, "weights": "show_weights", "pooling": "mean"},
    "last_films": {"column": "films", "rows": 40, "weights": "film_weights", "max_ids": 2},
    "first_shows": {
        "column": "shows",
        "rows": 30,
        "weights": "show_weights",
        "pooling": "mean",
        "max_ids": 2,
        "keep": "first",
    },
    "city": {"rows": 20, "offset": -1, "weights": ["city_weight", "city_boost"]},
    "word": {"rows": 15, "ids": "hash", "weights": "word_weight", "pooling": "mean"},
    "tags": {"rows": 10, "pooling": "mean"},
    "home": {"rows": 20},
}
FACTORS = ("film_boosts", "film_ages", "city_boost")
WEIGHTS = ("film_weights", "show_weights", "city_weight", "word_weight", *FACTORS)


def random_columns():
    """Returns raw columns, with nulls among ids, lists and weights, weights of 0 and, for sums, below 0."""
    random = np.random.default_rng(0)
    columns = {name: [] for name in ("films", "shows", "city", "word", "tags", "home", "age", *WEIGHTS)}
    for row in range(ROWS):
        for name, weights, size in (("films", "film_weights", 40), ("shows", "show_weights", 30)):
            ids = random.integers(0, size, row % 6).tolist()
            values = random.standard_normal(len(ids)) * 3
            values = np.where(random.random(len(ids)) < 0.2, 0, values if name == "films" else abs(values)).tolist()
            if len(ids) > 2:
                ids[1], values[1] = None, None
            if name == "shows" and row % 7 == 0:
                values = [value and 0.0 for value in values]
            columns[name].append(None if row % 11 == 0 else ids)
            columns[weights].append(None if row % 11 == 0 else values)
        columns["city"].append(None if row % 9 == 0 else int(random.integers(1, 21)))
        columns["city_weight"].append(None if row % 18 == 0 else int(random.integers(-3, 4)))
        columns["word"].append(None if row % 8 == 0 else f"word {random.integers(12)}")
        columns["word_weight"].append(float(random.integers(0, 3)))
        for factor in FACTORS[:2]:
            values = random.random(len(columns["films"][-1] or ())) + 0.5
            columns[factor].append(None if columns["films"][-1] is None else values.tolist())
        columns["city_boost"].append(float(random.random()) + 0.5)
        columns["tags"].append(random.integers(0, 10, random.integers(0, 5)).tolist())
        columns["home"].append(None if row % 10 == 0 else int(random.integers(0, 20)))
        columns["age"].append(float(random.standard_normal()))
    return columns


@pytest.fixture(scope="module")
def columns():
    return random_columns()


@pytest.fixture(scope="module")
def folder(columns, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    (folder / "data").mkdir()
    labels = {"label": np.random.default_rng(1).integers(0, 2, ROWS)}
    table = pa.table(columns | labels)
    pq.write_table(table[1:], folder / "data/part-1.parquet", row_group_size=64)
    for name in ("films", "shows", "city", "word", "home"):  # whose types only the other file says
        table = table.set_column(table.schema.get_field_index(name), name, pa.nulls(ROWS))
    pq.write_table(table[:1], folder / "data/part-0.parquet")
    tree = config(
        folder / "data",
        data__validation=[str(folder / "data")],
        data__dense={"age": {}},
        data__sparse=SPARSE,
        optimizer__sparse__learning_rate=1.0,
        train__steps=10,
    )
    launch([{"config": tree, "out": str(folder / "run")}], 1, folder)
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    return export(folder, "run", folder / "exported")


@pytest.fixture(scope="module")
def predicted(folder):
    """What the command predicts for all rows."""
    to = folder / "predictions"
    words = ["predict", f"{folder}/run/config.toml", "--out", f"{folder}/run", "--to", str(to)]
    assert trainer([*words, "--source", str(folder / "data")]) == 0
    return pq.read_table([*to.glob("*.parquet")])["label_probability"].to_numpy()


def same(found, expected, atol):
    np.testing.assert_allclose(found["label_probability"], expected, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def model(exported):
    return load(exported)


def test_an_export_answers_as_predictions_do(exported, columns, predicted):
    (found,) = ask((exported, columns))
    same(found, predicted, 1e-6)
    assert np.ptp(predicted) > 1e-2
    assert parity_of(exported)["columns"].keys() == columns.keys()


def test_all_weights_matter(model, columns, predicted):
    """An export would pass with weights that it leaves out, if none of them changed an answer."""
    for name in WEIGHTS:
        ones = [[1.0] * len(one) if isinstance(one, list) else one if one is None else 1.0 for one in columns[name]]
        assert np.abs(model(columns | {name: ones})["label_probability"].numpy() - predicted).max() > 1e-4, name


@pytest.fixture(scope="module")
def without_ids(columns):
    """Some rows without any list of ids."""
    lists = "films", "film_weights", "film_boosts", "film_ages", "shows", "show_weights", "tags"
    empty = {name: [None, []] for name in lists}
    return {name: values[1:3] for name, values in columns.items()} | empty


@pytest.mark.sample(0)
def test_tables_in_shards(folder, exported, columns, without_ids, tmp_path):
    shards = export(folder, "run", tmp_path, "--shard-bytes", "1000")
    found, empty, whole, whole_empty = ask(
        (shards, columns), (shards, without_ids), (exported, columns), (exported, without_ids)
    )
    same(found, whole["label_probability"], 1e-7)
    same(empty, whole_empty["label_probability"], 1e-7)


@pytest.mark.more("test_export_quantized.py has the formats")
@pytest.mark.sample(1)
@pytest.mark.parametrize(("dtype", "atol"), [("int8", 5e-4), ("int4", 5e-3)])
def test_quantized_tables(dtype, atol, folder, columns, predicted, tmp_path):
    (found,) = ask((export(folder, "run", tmp_path, "--quantize", dtype), columns))
    same(found, predicted, atol)


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
@pytest.mark.sample(0)  # compiles for half a minute
def test_machine_code(folder, columns, predicted, tmp_path):
    (found,) = ask((export(folder, "run", tmp_path, "--compile", "True"), columns), compiled=True)
    same(found, predicted, 1e-6)


@pytest.fixture
def served(exported, tmp_path):
    served = Served(exported, tmp_path)
    yield served
    served.process.kill()


@pytest.mark.more("test_serve.py serves")
def test_the_endpoint(served, columns, predicted):
    few = {"films": [3, 4], "film_weights": [1.0]}
    wrong = {name: values[1:2] for name, values in columns.items()} | {name: [one] for name, one in few.items()}
    (status, content), (refused, error) = served.ask({"columns": columns}, {"columns": wrong})
    assert status == 200
    same(content["outputs"], predicted, 1e-6)
    assert (refused, error["error"]) == (
        400,
        "column 'film_weights', row 0: 1 weight for 2 ids of 'films'; each id needs one",
    )


@pytest.mark.more("test_export_own_rule.py exports in every form")
def test_onnx(folder, model, columns, without_ids, predicted, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    directory = export(folder, "run", tmp_path, "--format", "onnx")
    found, empty = ask((directory, columns), (directory, without_ids), without=ONNX_ALONE)
    same(found, predicted, 1e-6)
    same(empty, model(without_ids)["label_probability"].numpy(), 1e-6)


def test_weights_are_taken_as_arrays_too(model, columns):
    row = {name: values[5:6] for name, values in columns.items()}
    arrays = {"city": torch.tensor(row["city"]), "city_weight": torch.tensor(row["city_weight"])}
    arrays |= {"shows": [torch.tensor([1, 2])], "show_weights": [torch.tensor([0.5, 1.5])]}
    plain = row | {"shows": [[1, 2]], "show_weights": [[0.5, 1.5]]}
    assert model(row | arrays)["label_probability"].tolist() == model(plain)["label_probability"].tolist()


SHOWS = "column 'show_weights', row 0: {} is not a weight; weights of ids are finite and, for a mean, at least 0"
FILMS = "column 'film_weights', row 0: {} is not a weight; weights of ids are finite"
WRONG = {
    "too few": ({"shows": [1, 2], "show_weights": [1.0]}, "row 0: 1 weight for 2 ids of 'shows'; each id needs one"),
    "for no list": ({"films": None, "film_weights": [1.0]}, "row 0: 1 weight for 0 ids of 'films'; each id needs one"),
    "below 0 in a mean": ({"shows": [1], "show_weights": [-1.0]}, SHOWS.format("-1.0")),
    "null": ({"films": [1], "film_weights": [None]}, FILMS.format("null")),
    "not finite": ({"films": [1], "film_weights": [float("inf")]}, FILMS.format("inf")),
    "too large for float32": ({"films": [1], "film_weights": [1e39]}, FILMS.format(r"1e\+39")),
    "beyond max_ids": ({"films": [1, 2, 3], "film_weights": [float("nan"), 1, 1]}, FILMS.format("nan")),
    "text": ({"films": [1], "film_weights": ["1"]}, FILMS.format("'1'")),
    "one for a list": ({"films": [1], "film_weights": 1.0}, "column 'film_weights', row 0: 1.0 is not a list of weigh"),
    "too few of a factor": (
        {"films": [1, 2], "film_weights": [1.0, 2.0], "film_boosts": [1.0]},
        "column 'film_boosts', row 0: 1 weight for 2 ids of 'films'; each id needs one",
    ),
    "a null factor": (
        {"films": [1], "film_weights": [1.0], "film_boosts": [None]},
        "column 'film_boosts', row 0: null is not a weight",
    ),
    "a product too large for float32": (
        {"films": [1], "film_weights": [1e38], "film_boosts": [1e38], "film_ages": [1.0]},
        "column 'film_boosts': its products with other weights of ids are not finite",
    ),
    "null for a single id": ({"city": 3, "city_weight": None}, "column 'city_weight', row 0: null is not a weight"),
    "a list for a single id": ({"city": 3, "city_weight": [1.0]}, "row 0: \\[1.0\\] is not a weight"),
}


def test_an_array_of_single_ids_is_no_column_of_lists(model, columns):
    row = {name: values[1:2] for name, values in columns.items()}
    with pytest.raises(ColumnError, match=r"column 'tags', row 0: tensor\(3\) is not a list of ids"):
        model(row | {"tags": torch.tensor([3])})


@pytest.mark.parametrize(("changes", "words"), WRONG.values(), ids=WRONG)
def test_wrong_weights(model, columns, changes, words):
    row = {name: values[1:2] for name, values in columns.items()}
    with pytest.raises(ColumnError, match=words):
        model(row | {name: [value] for name, value in changes.items()})
