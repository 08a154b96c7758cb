"""A model of expressions, lookups and overlaps: trained, predicted, exported and served alike."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import tomli_w
from endpoint import Served
from exported import ONNX_ALONE, ask, export, parity_of
from jobs import launch_rounds, losses
from looked_up import DENSE, SPARSE, columns, looked_up_config, write_looked_up

from trainer.__main__ import main as trainer

RATES = {"optimizer__sparse__learning_rate": 0.5, "optimizer__dense__learning_rate": 0.05}
FEATURES = [*DENSE, *SPARSE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run on one rank and on two."""
    folder = tmp_path_factory.mktemp("lookups")
    ahead = write_looked_up(folder / "ahead", seed=1)
    tree = looked_up_config(write_looked_up(folder / "data"), data__validation=[str(ahead)], train__steps=10, **RATES)
    rounds = [(ranks, [{"config": tree, "out": str(folder / f"on-{ranks}")}]) for ranks in (1, 2)]
    launch_rounds(rounds, folder)
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    return export(folder, "on-1", folder / "exported")


@pytest.fixture(scope="module")
def predicted(folder):
    """What the command predicts for all rows."""
    to = folder / "predictions"
    words = ["predict", f"{folder}/on-1/config.toml", "--out", f"{folder}/on-1", "--to", str(to)]
    assert trainer([*words, "--source", str(folder / "data")]) == 0
    return pq.read_table([*to.glob("*.parquet")])["label_probability"].to_numpy()


@pytest.fixture(scope="module")
def sent():
    """The rows as a client sends them."""
    rows = {name: values for name, values in columns().items() if name != "label"}
    return rows | {name: [one and [list(pair) for pair in one] for one in rows[name]] for name in ("prices", "shops")}


def test_trains_alike_on_two_ranks(folder):
    assert losses(folder / "on-2") == pytest.approx(losses(folder / "on-1"), rel=1e-6)


def test_an_export_answers_as_predictions_do(exported, sent, predicted):
    (found,) = ask((exported, sent))
    np.testing.assert_allclose(found["label_probability"], predicted, rtol=0, atol=1e-6)
    assert np.ptp(predicted) > 1e-2
    assert parity_of(exported)["columns"].keys() == sent.keys()


def test_every_column_matters(exported, sent):
    """Lists that go together keep their lengths."""
    together = ("items", "scores", "others beside")
    other = {name: values[7:] + values[:7] for name, values in sent.items()}
    other |= {name: [one and one[::-1] for one in sent[name]] for name in together}
    plain, *others = ask((exported, sent), *((exported, sent | {name: other[name]}) for name in sent))
    for name, one in zip(sent, others, strict=True):
        moved = np.subtract(one["label_probability"], plain["label_probability"])
        assert np.abs(moved).max() > 1e-6, name


def test_a_server_takes_the_columns_of_the_files(exported, sent, predicted, tmp_path):
    served = Served(exported, tmp_path)
    try:
        row = {name: [values[5]] for name, values in sent.items()}
        most = {name: values[:100] for name, values in sent.items()}
        answers = served.ask({"columns": most}, {"columns": row}, {"columns": row | {"prices": [3]}})
    finally:
        served.process.kill()
    (_, first), (_, one), (status, refused) = answers
    np.testing.assert_allclose(first["outputs"]["label_probability"], predicted[:100], rtol=0, atol=1e-6)
    np.testing.assert_allclose(one["outputs"]["label_probability"], predicted[5:6], rtol=0, atol=1e-6)
    assert status == 400
    assert "column 'prices', row 0: 3 is not a map" in json.dumps(refused)


@pytest.mark.more(
    "test_export_onnx.py writes ONNX, and shards are read by the same loader; here the same of these rules"
)
@pytest.mark.parametrize("flags", [("--format", "onnx"), ("--shard-bytes", "1000")], ids=["onnx", "shards"])
def test_other_forms_answer_alike(folder, sent, predicted, tmp_path, flags):
    without = {}
    if "onnx" in flags:
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
        without = {"without": ONNX_ALONE}
    (found,) = ask((export(folder, "on-1", tmp_path, *flags), sent), **without)
    np.testing.assert_allclose(found["label_probability"], predicted, rtol=0, atol=1e-6)


def test_check_data_finds_no_error_in_such_columns(folder, tmp_path):
    words = ["check-data", f"{folder}/on-1/config.toml", "--json", str(tmp_path / "found.json")]
    assert trainer(words) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [one for one in found["findings"] if one["severity"] == "error"] == []
    assert found["columns"].keys() == columns().keys() - {"prices", "shops", "texts", "scores"}


@pytest.mark.parametrize(
    ("dense", "words"),
    [
        ({"expression": "clicks / country"}, "column 'country' is of type string; it must be a number, a date or a"),
        ({"column": "prices", "lookup": "item"}, "column 'prices' has strings, but 'item', which data.dense.x.lookup"),
    ],
)
def test_check_data_refuses_what_training_refuses(folder, tmp_path, capfd, dense, words):
    tree = looked_up_config(folder / "data", data__dense={"x": dense})
    tree["data"]["dense"] = {"x": dense}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(tree))
    for command in (["check-data", "--strict", "True"], ["train", "--out", str(tmp_path / "out")]):
        assert trainer([command[0], str(tmp_path / "config.toml"), *command[1:]]) == 2
        captured = capfd.readouterr()
        assert words in " ".join((captured.out + captured.err).split())
