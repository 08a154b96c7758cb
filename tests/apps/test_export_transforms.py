"""Exports with every transform answer as predictions do; what cannot be exported is refused before."""

import importlib.util
import json
import math
import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported import ONNX_ALONE, TORCH_ALONE, ask, export, parity_of
from jobs import launch
from transformed import transformed_config, write_transformed

from torchx_recsys.apps.export.signature import signature
from trainer.__main__ import main as trainer
from trainer.config.data import DataConfig
from trainer.core.errors import InputError

pytestmark = pytest.mark.more("test_export.py exports, test_transforms.py has what each makes of a value; here both")

RATES = {"optimizer__sparse__learning_rate": 0.5, "optimizer__dense__learning_rate": 0.02}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of every transform."""
    folder = tmp_path_factory.mktemp("runs")
    tree = transformed_config(write_transformed(folder / "data"), train__steps=10, **RATES)
    launch([{"config": tree, "out": str(folder / "all")}], 1, folder)
    return folder


@pytest.fixture(scope="module")
def exported(folder):
    return export(folder, "all", folder / "exported")


@pytest.fixture(scope="module")
def columns(folder):
    """The columns of the data set as a client sends them: times in seconds."""
    table = pq.read_table(folder / "data/part.parquet").to_pydict()
    table["seen"] = [time and (time - EPOCH) // timedelta(seconds=1) for time in table["seen"]]
    table["born"] = [day and str(day) for day in table["born"]]
    del table["label"]
    return table


@pytest.fixture(scope="module")
def predicted(folder):
    """What the command predicts for all rows."""
    to = folder / "predictions"
    words = ["predict", f"{folder}/all/config.toml", "--out", f"{folder}/all", "--to", str(to)]
    assert trainer([*words, "--source", str(folder / "data")]) == 0
    return pq.read_table([*to.glob("*.parquet")])["label_probability"].to_numpy()


def test_an_export_answers_as_predictions_do(exported, columns, predicted):
    (found,) = ask((exported, columns))
    np.testing.assert_allclose(found["label_probability"], predicted, rtol=0, atol=1e-6)
    assert np.ptp(predicted) > 1e-2


def test_every_feature_matters(exported, columns):
    """An export would pass with rules that it leaves out, if none of them changed an answer."""
    others = {name: columns | {name: values[1:] + values[:1]} for name, values in columns.items()}
    found = ask((exported, columns), *((exported, one) for one in others.values()))
    plain = np.array(found[0]["label_probability"])
    for name, one in zip(others, found[1:], strict=True):
        assert np.abs(np.array(one["label_probability"]) - plain).max() > 1e-5, name


FORMS = {
    "shards": (("--shard-bytes", "1000"), TORCH_ALONE, 1e-6),
    "int8": (("--quantize", "int8"), TORCH_ALONE, 1e-3),
    "onnx": (("--format", "onnx"), ONNX_ALONE, 1e-6),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize(("flags", "without", "atol"), FORMS.values(), ids=FORMS)
def test_other_forms_answer_alike(folder, exported, columns, predicted, tmp_path, flags, without, atol):
    if without is ONNX_ALONE:
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    (found,) = ask((export(folder, "all", tmp_path, *flags), columns), without=without)
    np.testing.assert_allclose(found["label_probability"], predicted, rtol=0, atol=atol)
    if "--shard-bytes" in flags:
        (whole,) = ask((exported, columns))
        np.testing.assert_allclose(found["label_probability"], whole["label_probability"], rtol=0, atol=1e-7)


@pytest.fixture(scope="module")
def loaded(exported):
    """The module of the export's loader, and what it has loaded."""
    spec = importlib.util.spec_from_file_location("loaded", exported / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, module.load(exported)


def test_times_are_taken_as_objects_and_text_too(loaded, columns):
    _, model = loaded
    plain = model(columns)["label_probability"].tolist()
    times = [None if one is None else EPOCH + timedelta(seconds=one) for one in columns["seen"]]
    assert model(columns | {"seen": times})["label_probability"].tolist() == plain
    text = [None if one is None else one.replace(tzinfo=None).isoformat() for one in times]
    assert model(columns | {"seen": text})["label_probability"].tolist() == plain


def test_what_pandas_has_for_a_null_is_one(loaded, columns):
    _, model = loaded
    plain = model(columns)["label_probability"].tolist()
    for name in ("word", "seen", "tags", "terms"):
        assert None in columns[name]
        for null in (math.nan, type("NAType", (), {})(), type("NaTType", (), {})()):
            values = [
                null if value is None else [null if one is None else one for one in value] if name == "terms" else value
                for value in columns[name]
            ]
            assert model(columns | {name: values})["label_probability"].tolist() == plain


WRONG = {
    "a number out of the range with its offset": ({"place": 41}, "column 'place': id 41 is outside [1, 41)"),
    "a time in milliseconds": ({"seconds": 1_700_000_000_000}, "column 'seconds': time 1700000000000 is outside [1000"),
    "no time": ({"seen": "yesterday"}, "column 'seen', row 0: 'yesterday' is not an integer"),
    "no number": ({"price": "4"}, "column 'price', row 0: '4' is not a number"),
    "too small for a logarithm": ({"price": -3.0}, "column 'price', row 0: -3.0 has no finite value under the"),
}


@pytest.mark.parametrize(("changes", "words"), WRONG.values(), ids=WRONG)
def test_wrong_values(loaded, columns, changes, words):
    module, model = loaded
    row = {name: values[:1] for name, values in columns.items()}
    with pytest.raises(module.ColumnError) as raised:
        model(row | {name: [value] for name, value in changes.items()})
    assert words in str(raised.value)


def test_parity_rows_are_of_all_columns(exported, columns):
    assert parity_of(exported)["columns"].keys() == columns.keys()
    json.dumps(parity_of(exported))


@pytest.mark.parametrize(
    ("dtype", "dense", "sparse", "words"),
    [
        (pa.date32(), {"transform": "age", "now": "2026-01-31"}, {"rows": 9}, "times to data.dense.age, but ids to"),
        (pa.timestamp("us"), {}, {"rows": 9, "ids": "hash"}, "numbers to data.dense.age, but ids to"),
        (pa.duration("ms"), {}, {"rows": 9, "ids": "hash"}, "numbers to data.dense.age, but ids to"),
        (pa.timestamp("us"), {}, {"rows": 24, "transform": "hour"}, "times to data.sparse.born, but numbers to"),
    ],
)
def test_a_column_of_times_in_two_roles_is_refused(dtype, dense, sparse, words):
    """As ids they are ticks, as numbers seconds."""
    data = DataConfig(dense={"age": {"column": "born", **dense}}, sparse={"born": sparse})
    with pytest.raises(InputError, match=f"column 'born' has {re.escape(words)}"):
        signature(data, {"born": dtype}, [], [])
