"""Exports of tables in half precision, and of large numbers: none is refused for how its reference rounds."""

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported import ONNX_ALONE, TORCH_ALONE, ask, export
from jobs import config, launch

from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_export.py stands for all")

ROWS = 150
ADAM = {"name": "adam", "learning_rate": 1.0}
FORMS = {
    "whole": ((), TORCH_ALONE),
    "shards": (("--shard-bytes", "1000"), TORCH_ALONE),
    "onnx": (("--format", "onnx"), ONNX_ALONE),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with every way of pooling in tables of float16, and one that predicts numbers of thousands."""
    folder, draw = tmp_path_factory.mktemp("precision"), np.random.default_rng(0)
    ids = [draw.integers(0, 20, size).tolist() for size in draw.integers(0, 6, ROWS)]
    columns = {"tags": ids, "weights": [draw.random(len(one)).tolist() for one in ids], "price": draw.random(ROWS)}
    columns |= {
        "item": draw.integers(0, 20, ROWS),
        "label": draw.integers(0, 2, ROWS),
        "spent": 1e4 * draw.random(ROWS),
    }
    (folder / "data").mkdir()
    pq.write_table(pa.table(columns), folder / "data/part.parquet", row_group_size=50)
    tree = config(folder / "data", data__validation=[str(folder / "data")], train__steps=40)
    tree["optimizer"] = {
        "sparse": {"name": "rowwise_adagrad", "learning_rate": 1.0},
        "dense": ADAM | {"learning_rate": 0.01},
    }
    features = {
        "item": {"rows": 20},
        "sum": {"column": "tags", "rows": 20},
        "mean": {"column": "tags", "rows": 20, "pooling": "mean"},
        "last": {"column": "tags", "rows": 20, "max_ids": 2, "pooling": "mean"},
    }
    tree["data"] |= {"dense": {"price": {}}, "sparse": features}
    half = tree | {"model": tree["model"] | {"table_precision": "fp16"}}
    weighed = features | {"weighed": {"column": "tags", "rows": 20, "weights": "weights"}}
    large = tree | {"tasks": {"spent": {"loss": "squared"}}, "optimizer": tree["optimizer"] | {"dense": ADAM}}
    trees = {
        "half": half,
        "weighed": half | {"data": tree["data"] | {"sparse": weighed}},
        "large": large | {"data": tree["data"] | {"labels": ["spent"], "numeric_labels": ["spent"]}},
    }
    launch([{"config": one, "out": str(folder / name)} for name, one in trees.items()], 1, folder)
    return folder


@pytest.fixture(scope="module")
def predicted(runs):
    """Returns the data with the predictions of a run."""

    @cache
    def predicted(run):
        words = ["predict", runs / run / "config.toml", "--out", runs / run, "--source", runs / "data"]
        assert trainer([*map(str, words), "--to", str(runs / f"{run} predicted")]) == 0
        return pq.read_table([*(runs / f"{run} predicted").glob("*.parquet")])

    return predicted


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize(
    ("run", "form"),
    [("half", "whole"), ("half", "onnx"), ("weighed", "whole"), ("weighed", "shards"), ("large", "onnx")],
)
def test_answers_are_those_of_predictions(runs, predicted, run, form, tmp_path):
    flags, without = FORMS[form]
    if form == "onnx":
        pytest.importorskip("onnxscript")
    table, names = predicted(run), ["tags", "price", "item", *(["weights"] if run == "weighed" else [])]
    directory = export(runs, run, tmp_path, *flags)
    (found,) = ask((directory, table.select(names).to_pydict()), without=without)
    ((output, values),) = found.items()
    expected = table[output].to_numpy()
    assert np.ptp(expected) > (1000 if run == "large" else 0.1)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))
