"""Vectors as features in whatever follows training: predictions, exports of each form, a server, lists, figures."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from endpoint import Served
from exported import ONNX_ALONE, TORCH_ALONE, ask, parity_of, step_directory
from jobs import config as plain_config
from jobs import launch, losses
from retrieval import ITEMS, settings, write_data

from torchx_recsys.apps.export.load import ColumnError, load
from trainer.__main__ import main as trainer
from trainer.config.root import Config
from trainer.plan.dense_part import dense_part

WIDTH, ROWS = 4, 256
RATES = {"optimizer__sparse__learning_rate": 0.5, "optimizer__dense__learning_rate": 0.1}


def write_vectors(folder):
    """Writes rows with vectors, some null, whose label depends on them."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    vectors = random.normal(3, 2, (ROWS, WIDTH)).astype(np.float32)
    rows = [None if row % 9 == 8 else [*vector] for row, vector in enumerate(vectors.tolist())]
    rows[0] = [None, *rows[0][1:]]
    columns = {
        "x": random.standard_normal(ROWS),
        "v": pa.array(rows, pa.list_(pa.float32())),
        "s": random.integers(0, 30, ROWS),
        "label": (vectors[:, 0] - vectors[:, 3] + random.standard_normal(ROWS) > 0).astype(float),
    }
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=64)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with a vector, a transformed one of the same column, and whether there is a vector."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_vectors(folder / "data")
    tree = plain_config(data, data__validation=[str(data)], train__epochs=6, **RATES)
    del tree["train"]["steps"]
    tree["data"] |= {
        "dense": {
            "x": {},
            "v": {"width": WIDTH, "mean": 3.0, "std": 2.0, "missing": 3.0},
            "v_log": {"column": "v", "width": WIDTH, "clip": [-1.0, 5.0], "transform": "log3"},
            "v_missing": {"column": "v", "transform": "is_missing"},
        },
        "sparse": {"s": {"rows": 30}},
    }
    launch([{"config": tree, "out": str(folder / "run")}], 1, folder)
    return folder


def words_of(command, folder, *flags):
    return [command, f"{folder}/run/config.toml", "--out", f"{folder}/run", *map(str, flags)]


def exported(folder, name, *flags):
    assert trainer(words_of("export", folder, "--to", folder / name, *flags)) == 0
    return step_directory(folder / name)


@pytest.fixture(scope="module")
def torch_form(folder):
    return exported(folder, "torch")


@pytest.fixture(scope="module")
def columns(folder):
    return {name: values for name, values in pq.read_table(folder / "data").to_pydict().items() if name != "label"}


@pytest.fixture(scope="module")
def predicted(folder):
    """What the command predicts for all rows."""
    flags = ("--source", folder / "data", "--to", folder / "predictions")
    assert trainer(words_of("predict", folder, *flags)) == 0
    return pq.read_table([*(folder / "predictions").glob("*.parquet")])["label_probability"].to_numpy()


FORMS = {"shards": ("--shard-bytes", "2000"), "onnx": ("--format", "onnx")}


@pytest.mark.parametrize("form", ["torch", *FORMS])
def test_an_export_answers_as_predictions_do(folder, torch_form, columns, predicted, form):
    directory = torch_form if form == "torch" else exported(folder, form, *FORMS[form])
    others = {name: columns | {name: values[1:] + values[:1]} for name, values in columns.items()}
    questions = [(directory, one) for one in (columns, *others.values())]
    found = [
        np.array(one["label_probability"])
        for one in ask(*questions, without=ONNX_ALONE if form == "onnx" else TORCH_ALONE)
    ]
    np.testing.assert_allclose(found[0], predicted, rtol=0, atol=1e-6)
    for name, one in zip(others, found[1:], strict=True):
        assert np.abs(one - found[0]).max() > 1e-4, name


def test_the_signature_has_the_shape_of_a_vector(torch_form):
    signature = json.loads((torch_form / "signature.json").read_text())
    assert {"name": "v", "dtype": "float32", "shape": ["B", WIDTH]} in signature["inputs"]
    assert {"name": "v_missing", "dtype": "float32", "shape": ["B"]} in signature["inputs"]
    (column,) = (one for one in signature["columns"] if one["input"] == "v")
    assert (column["kind"], column["width"]) == ("vector", WIDTH)


def test_a_tensor_is_a_batch_of_vectors(torch_form, columns):
    model, whole = load(torch_form), [row for row, one in enumerate(columns["v"]) if one and None not in one]
    some = {name: [values[row] for row in whole] for name, values in columns.items()}
    as_tensor = some | {"v": torch.tensor(some["v"])}
    as_rows = some | {"v": [np.array(one, np.float32) for one in some["v"]]}
    for other in (as_tensor, as_rows):
        torch.testing.assert_close(model(other)["label_probability"], model(some)["label_probability"])


WRONG = {
    "another length": ([[0.0] * 4, [0.0] * 5], "column 'v', row 1: 5 numbers; it must be 4"),
    "a number": ([[0.0] * 4, 1.5], "column 'v', row 1: 1.5 is not a list of numbers"),
    "a text": ([["a", 0, 0, 0], None], "column 'v', row 0: 'a' is not a number; a missing one is null, in Python None"),
    "infinity": (
        [None, [0, 1e39, 0, 0]],
        "column 'v', row 1: 1e+39 at place 1 has no finite value under the transform",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_vector_is_refused_in_one_line(torch_form, fault):
    vectors, message = WRONG[fault]
    with pytest.raises(ColumnError) as raised:
        load(torch_form)({"x": [0.0, 0.0], "s": [1, 2], "v": vectors})
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_a_tensor_of_another_width_is_refused(torch_form):
    model, columns = load(torch_form), {"x": [0.0, 0.0], "s": [1, 2], "v": torch.zeros(2, 3)}
    with pytest.raises(ColumnError, match=r"column 'v' is an array \[2, 3\] of float32; it must be \[B, 4\]"):
        model(columns)


def test_a_server_takes_a_list_for_each_sample(torch_form, tmp_path):
    served, parity = Served(torch_form, tmp_path), parity_of(torch_form)
    wrong = {"columns": {"x": [0.0], "s": [1], "v": [[1.0, 2.0]]}}
    (status, content), (refused, error) = served.ask({"columns": parity["columns"]}, wrong)
    served.process.kill()
    assert (status, refused) == (200, 400)
    assert error == {"error": "column 'v', row 0: 2 numbers; it must be 4"}
    for name, values in parity["answers"].items():
        np.testing.assert_allclose(content["outputs"][name], values, atol=1e-6)


def test_importance_permutes_whole_vectors(folder):
    assert trainer(words_of("importance", folder, "--metric", "auc")) == 0
    features = json.loads((folder / "run/importance.json").read_text())["features"]
    assert features[0]["name"] == "v + v_log + v_missing"
    assert features[0]["drop"] > 0.1 > max(abs(one["drop"]) for one in features[1:])


def test_baselines_take_each_place_of_a_vector(folder, capfd):
    flags = ("--only", "logistic regression", "--to", str(folder / "baselines.json"))
    assert trainer(["baselines", f"{folder}/run/config.toml", *flags]) == 0
    line = next(line for line in capfd.readouterr().out.splitlines() if line.startswith("logistic regression"))
    assert float(line.split()[2]) > 0.9  # the AUC, which needs the first and the last place of the vector


def test_a_plan_counts_the_weights_of_each_column():
    def weights(width):
        tree = plain_config("data", model__dense_layers=[16])
        tree["data"]["dense"] = {"v": {"width": width}}
        return dense_part(Config.model_validate(tree), 1).memory.weights

    assert weights(300) - weights(100) == 200 * 16 * 4


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    """Runs of two towers with vectors of items, on 1 and 2 ranks."""
    folder = tmp_path_factory.mktemp("towers")
    data = write_data(folder / "data")
    of_items = np.random.default_rng(5).standard_normal((ITEMS, 3)).astype(np.float32)
    for path, key in (
        (data / "train/part.parquet", "s1"),
        (data / "validation/part.parquet", "s1"),
        (data / "items.parquet", "s1"),
    ):
        table = pq.read_table(path)
        vectors = of_items[table[key].to_numpy()].astype(np.float16)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 3)
        table = table.append_column("v", column).append_column("user", pa.array(np.arange(len(table))))
        pq.write_table(table, path, row_group_size=40)
    tree = settings(data, losses=("sampled",), train__steps=6)
    tree["data"]["dense"] = {"d0": {}, "v": {"width": 3}, "price": {}}
    tree["data"]["groups"] = ["s1", "user"]
    tree["model"]["item_features"] += ["v"]
    for ranks in (1, 2):
        launch([{"config": tree, "out": str(folder / f"run-{ranks}")}], ranks, folder)
    return folder


def evaluations(run):
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]


def test_towers_over_vectors_of_items_are_the_same_on_any_number_of_ranks(towers):
    np.testing.assert_allclose(losses(towers / "run-2"), losses(towers / "run-1"), rtol=1e-5)
    (one,), (two,) = (evaluations(towers / f"run-{ranks}") for ranks in (1, 2))
    assert two == one | {name: pytest.approx(one[name], rel=1e-5) for name in ("recall@5", "hit_rate@20", "mrr")}


def test_lists_of_items_by_their_vectors_are_those_of_an_export(towers):
    run, items = towers / "run-1", towers / "data/items.parquet"
    words = [str(run / "config.toml"), "--out", str(run)]
    source = ("--source", str(towers / "data/validation"), "--user-column", "user", "--k", "5", "--batch-size", "32")
    assert trainer(["export", *words, "--to", str(towers / "to")]) == 0
    assert trainer(["recommend", *words, "--to", str(towers / "lists"), *source]) == 0
    of_export = ("--export", str(towers / "to"), "--items", str(items), "--to", str(towers / "others"))
    assert trainer(["recommend", *of_export, *source]) == 0
    found, others = (pq.read_table([*(towers / name).glob("*.parquet")]) for name in ("lists", "others"))
    order = [("user", "ascending"), ("rank", "ascending")]
    found, others = found.sort_by(order), others.sort_by(order)
    assert found["item"].to_pylist() == others["item"].to_pylist()
    np.testing.assert_allclose(found["score"], others["score"], atol=1e-5)
