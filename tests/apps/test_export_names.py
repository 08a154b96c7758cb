"""Columns of any name, those of Python and of modules too: trained, exported in every form, loaded and served."""

import json
import keyword
import random
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from endpoint import Served
from exported import ONNX_ALONE, ask, export, first_rows, parity_of
from jobs import config, launch
from torch import nn

from trainer.models.embeddings import name_in_model, table_of_name

ROWS = 70
KEYWORDS = [*keyword.kwlist, *keyword.softkwlist, "type"]
ATTRIBUTES = {*dir(nn.ModuleDict()), *vars(nn.Linear(1, 1)), "weight", "bias"}
ODD = [
    *("0", "7days", "1e5", "a.b", "a..b", ".", "with spaces", " ", "tab\t", "line\nbreak", "\r", 'quote"d', "it's"),
    *("back\\slash", "{brace}", "$x", "%", "%type", "%%type", "%2E", "a%2Eb", "a%252Eb", "%25", "a/b", "../up", "#"),
    *("[0]", "a,b", "a:b", "a=b", "-", "*", "цена", "名前", "😀", "e\u0301", "ﬁ", "x" * 200, "ж" * 200),
    *("self", "columns", "dense", "sparse", "model", "rules", "weight_0", "p_model", "embedding_bags", "size_0"),
    *("float", "double", "null", "nan", "torch", "Class", "CLASS", "class_", "class.values", "class.lengths"),
]
NAMES = [*dict.fromkeys([*KEYWORDS, *sorted(ATTRIBUTES), *ODD])]
SAMPLE = 20  # of the names, unless --all trains and exports them all
FEW = [
    "class",
    "None",
    "type",
    "weight",
    "7days",
    "a.b",
    "%2E",
    'quote"d',
    "back\\slash",
    "line\nbreak",
    "цена",
    "ж" * 200,
]
LABELS = [*dict.fromkeys([*KEYWORDS, *FEW, "embedding_bags", "keys", "values", "forward"])]


def columns_of(names):
    """Columns by name, a third of each kind: numbers, ids and lists of ids."""
    draw = np.random.default_rng(0)
    kinds = (
        lambda: draw.standard_normal(ROWS).astype(np.float32),
        lambda: draw.integers(-(2**62), 2**62, ROWS),
        lambda: [draw.integers(0, 20, size).tolist() for size in draw.integers(0, 4, ROWS)],
    )
    return {name: kinds[place % 3]() for place, name in enumerate(names)}


def of_features(folder, names):
    """Every name is that of a sparse feature and its table; of the lists that of a dense feature, too."""
    folder.mkdir()
    draw, columns = np.random.default_rng(1), columns_of(names)
    lists = [name for name, values in columns.items() if isinstance(values, list)]
    numbers = draw.standard_normal(ROWS).astype(np.float32)
    label = draw.integers(0, 2, ROWS).astype(np.float32)
    pq.write_table(pa.table(columns | {"a number": numbers, "the label": label}), folder / "part.parquet")
    tree = config(folder, data__validation=[str(folder)], data__labels=["the label"], train__steps=1)
    rules = ({"buckets": [-0.5, 0.5], "rows": 3}, {"ids": "managed", "rows": 90}, {"ids": "hash", "rows": 11})
    tree["data"] |= {
        "dense": {name: {"column": "a number"} for name in lists},
        "sparse": {name: rules[place % 3] for place, name in enumerate(names)},
    }
    tree["model"] = {"name": "wide_deep", "embedding_dim": 4, "over_layers": [4]}
    return tree


def of_labels(folder):
    """Names are those of labels, so of predictions with a gate and a tower each."""
    folder.mkdir()
    draw = np.random.default_rng(2)
    labels = {name: draw.integers(0, 2, ROWS).astype(np.float32) for name in LABELS}
    pq.write_table(pa.table(labels | {"an id": draw.integers(0, 9, ROWS)}), folder / "part.parquet")
    tree = config(folder, data__validation=[str(folder)], data__labels=LABELS, evaluate__metrics=["log_loss"])
    tree["data"] |= {"dense": {}, "sparse": {"an id": {"rows": 9}}}
    tree["model"] = {"name": "mmoe", "embedding_dim": 4, "tower_layers": [], "experts": {"layers": [4], "shared": 2}}
    tree["train"]["steps"] = 1
    return tree


@pytest.fixture(scope="module")
def names(request):
    """Names of features: all of them, or those that are odd in other ways and a sample."""
    if request.config.getoption("all"):
        return NAMES
    return [*dict.fromkeys([*FEW, *random.Random(0).sample(NAMES, SAMPLE)])]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("names")
    trees = {
        "features": of_features(folder / "rows", names),
        "few": of_features(folder / "few rows", FEW),
        "labels": of_labels(folder / "label rows"),
    }
    launch([{"config": tree, "out": str(folder / name)} for name, tree in trees.items()], 1, folder)
    return folder


@pytest.fixture(scope="module")
def features(runs):
    return export(runs, "features", runs / "exported")


def assert_answers(directory, **how):
    """A process of its own has the trainer's answers."""
    parity = parity_of(directory)
    (found,) = ask((directory, parity["columns"]), **how)
    assert found.keys() == parity["answers"].keys()
    for output, values in parity["answers"].items():
        np.testing.assert_allclose(found[output], values, rtol=0, atol=1e-6)
        assert np.ptp(values) > 1e-6
    return parity


@pytest.mark.more("unusual names")
def test_it_is_loaded_and_served_by_its_columns_own_names(features, names, tmp_path):
    parity = assert_answers(features)
    assert parity["columns"].keys() == {"a number", *names}
    served = Served(features, tmp_path)
    ((status, content), (wrong, error)) = served.ask(
        {"columns": parity["columns"]}, {"columns": first_rows(parity["columns"], slice(1)) | {"class": ["x"]}}
    )
    served.process.kill()
    assert status == 200, content
    ((output, values),) = parity["answers"].items()
    np.testing.assert_allclose(content["outputs"][output], values, atol=1e-6)
    assert wrong == 400
    assert error["error"].startswith("column 'class', row 0: ")


@pytest.mark.sample(0)
def test_tables_in_shards(runs, tmp_path):
    directory = export(runs, "few", tmp_path, "--shard-bytes", "160")
    assert_answers(directory)
    assert json.loads((directory / "tables.json").read_text())["tables"].keys() == {*FEW}


@pytest.mark.sample(0)
def test_quantized_tables_in_onnx(runs, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert_answers(export(runs, "few", tmp_path, "--quantize", "int4", "--format", "onnx"), without=ONNX_ALONE)


@pytest.mark.sample(0)
def test_labels(runs, tmp_path):
    parity = assert_answers(export(runs, "labels", tmp_path))
    assert parity["answers"].keys() == {f"{name}_probability" for name in LABELS}


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
@pytest.mark.sample(0)  # compiles for minutes
def test_machine_code(runs, tmp_path, recwarn):
    assert_answers(export(runs, "few", tmp_path, "--compile", "True"), compiled=True)
    assert not [str(one.message) for one in recwarn if "LeafSpec" in str(one.message)]


def test_every_name_in_a_model_is_that_of_one_table():
    draw = random.Random(0)
    mixed = (
        "".join(draw.choices(["%", "2E", "25", ".", "type", "a", "2", "E"], k=draw.randint(1, 7))) for _ in range(10**4)
    )
    tables = {*NAMES, *mixed}
    names = {name_in_model(table): table for table in tables}
    assert {table_of_name(name): name for name in names} == {table: name for name, table in names.items()}
    assert len(names) == len(tables)
    assert not any("." in name or hasattr(nn.ModuleDict(), name) for name in names)
