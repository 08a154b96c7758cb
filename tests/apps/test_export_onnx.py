"""Exports in ONNX: answers without torch, equal to the trainer's own.

By default one built-in model is exported; `--all` exports all.
"""

import json
import re
import sys
from functools import partial

import numpy as np
import onnx
import pytest
from exported import ONNX_ALONE, ask, first_rows, parity_of, step_directory
from forked import run_forked
from jobs import launch
from raw_columns import columns_config, write_columns
from ready_made import NAMES, ready_made, sampled, write_ratings
from sequences import sequence_config, write_histories

from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_export_own_rule.py exports in every form")

PATHS = rb"/(tmp|work|home|root|usr|site-packages)/"
RATES = {"optimizer__sparse__learning_rate": 0.5, "optimizer__dense__learning_rate": 0.05}
HERE = {"train__steps": 10, **RATES}
LAYERS = {"model__dropout": 0.2, "model__normalization": "batch", "model__activation": "gelu"}

MATRIX = "name", lambda whole: sampled(NAMES, 1, whole)
ask_onnx = partial(ask, without=ONNX_ALONE)


@pytest.fixture(scope="module")
def runs(matrix, tmp_path_factory):
    """Runs of built-in models, of one with every rule, of one's own, and of one that ONNX cannot express."""
    folder = tmp_path_factory.mktemp("runs")
    ratings, raw, histories = write_ratings(folder), write_columns(folder / "raw"), write_histories(folder / "h", 130)
    vocabulary((str(raw),), ("listed",), str(folder / "vocabulary"), min_count=8, unseen_rows=3)
    trees = {name: ready_made(name, ratings, **LAYERS, **HERE) for name in matrix}
    if "hstu" in trees:  # ONNX cannot view a float's bits, which the buckets of times are
        trees["hstu"]["model"] = {k: v for k, v in trees["hstu"]["model"].items() if "time" not in k}
        for name in ("times_before", "timestamp"):
            del trees["hstu"]["data"]["sparse"][name]
    if "finalmlp" in trees:  # whose logits are products: at that rate they get so large that rounding is above 1e-6
        trees["finalmlp"]["optimizer"]["sparse"]["learning_rate"] = 0.05
    trees["rules"] = columns_config(raw, folder / "vocabulary/listed.parquet", **HERE)
    for name, model in (("own", "custom:SumOfSequences"), ("bessel", "custom:Bessel")):
        trees[name] = sequence_config(histories, model, data__validation=[str(histories)], **HERE)
        del trees[name]["model"]["target"], trees[name]["model"]["history"], trees[name]["model"]["over_layers"]
    launch([{"config": tree, "out": str(folder / name)} for name, tree in trees.items()], 1, folder)
    return folder


def words_of(runs, name, to, *flags):
    return [str(word) for word in ("export", runs / name / "config.toml", "--out", runs / name, "--to", to, *flags)]


def export(runs, name, to, *flags):
    """Exports a run and returns the directory."""
    assert trainer(words_of(runs, name, to, *flags)) == 0
    return step_directory(to)


@pytest.fixture(scope="module")
def exports(runs, matrix):
    """Directories by run; of every rule, with quantized tables, of which a byte holds two values."""
    flags = dict.fromkeys(matrix, ()) | {"rules": ("--quantize", "int4"), "own": ()}
    return {name: export(runs, name, runs / "exports" / name, "--format", "onnx", *flags[name]) for name in flags}


def assert_parity(directory, found):
    expected = parity_of(directory)["answers"]
    assert found.keys() == expected.keys()
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, rtol=0, atol=1e-6)
        assert np.ptp(np.asarray(values), axis=0).max() > 1e-4


def test_built_in_models_answer_as_the_trainer_does(exports, name):
    (found,) = ask_onnx((exports[name], parity_of(exports[name])["columns"]))
    assert_parity(exports[name], found)


def test_rules_and_models_of_ones_own_too(exports):
    names = ("rules", "own")
    answers = ask_onnx(*((exports[name], parity_of(exports[name])["columns"]) for name in names))
    for name, found in zip(names, answers, strict=True):
        assert_parity(exports[name], found)


def test_one_sample_and_empty_lists(exports):
    directory = exports["rules"]
    columns, expected = (parity_of(directory)[kind] for kind in ("columns", "answers"))
    row = next(row for row in range(64) if columns["tags"][row] and columns["history"][row])
    alone, none, again = ask_onnx(
        (directory, first_rows(columns, slice(row, row + 1))),
        (directory, {name: [None] for name in columns}),
        (directory, {name: [None, None] for name in columns}),
    )
    for output, values in expected.items():
        np.testing.assert_allclose(alone[output], values[row : row + 1], atol=1e-6)
        assert np.isfinite(none[output]).all()
        np.testing.assert_allclose(again[output], none[output] * 2, atol=1e-7)


def test_any_number_of_64_bits_is_hashed_as_in_torch(runs, exports, tmp_path):
    of_torch = export(runs, "rules", tmp_path, "--quantize", "int4")
    random = np.random.default_rng(0)
    wide = [
        -(2**63),
        -(2**63) + 1,
        -(2**63) + 2,
        -1,
        0,
        1,
        2**63 - 1,
        *random.integers(-(2**63), 2**63 - 1, 300).tolist(),
    ]
    columns = {
        name: (values * 5)[: len(wide)] for name, values in parity_of(of_torch)["columns"].items()
    } | dict.fromkeys(("wrapped", "hashed", "user"), wide)
    columns["unsigned"] = [value % 2**64 for value in wide]
    (expected,), (found,) = ask((of_torch, columns)), ask_onnx((exports["rules"], columns))
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, atol=1e-6)


def test_arrays_of_numpy_are_columns_too(exports, monkeypatch):
    monkeypatch.syspath_prepend(exports["rules"])
    monkeypatch.delitem(sys.modules, "load", raising=False)
    import load

    model, parity = load.load(verify=True), parity_of(exports["rules"])
    columns = parity["columns"]
    arrays = columns | {
        "price": np.array([np.nan if value is None else value for value in columns["price"]]),
        "plain": np.array(columns["plain"], object),
        "hashed": np.array(columns["hashed"], object),
        "unsigned": np.array(columns["unsigned"], np.uint64),
        "word": np.array(columns["word"], object),
        "tags": [None if one is None else np.array(one) for one in columns["tags"]],
    }
    found = model(arrays)
    for output, values in parity["answers"].items():
        np.testing.assert_allclose(found[output], values, atol=1e-6)
    wrong = {
        "price": (np.array([[1.0]]), "column 'price' is an array [1, 1] of float64; it must be [B] of numbers"),
        "plain": (np.array([1.5]), "column 'plain' is an array [1] of float64; it must be [B] of int64"),
        "count": (np.array([3, -2]), "column 'count', row 1: -2 has no finite value under the transform 'log1p'"),
        "item": ([60], "column 'item': id 60 is outside [0, 60)"),
        "word": ([7], "column 'word', row 0: 7 is not a string"),
        "history": ([7], "column 'history', row 0: 7 is not a list of ids"),
        "other": ([7], "column 'other' is unknown"),
    }
    for name, (values, message) in wrong.items():
        with pytest.raises(load.ColumnError, match=f"^{re.escape(message)}"):
            model({**{column: [None] * len(values) for column in columns}, name: values})
    with pytest.raises(ValueError, match="has no compiled model"):
        load.load(compiled=True)


def test_the_file_is_valid_and_has_the_names_of_the_signature(exports):
    for directory in exports.values():
        signature = json.loads((directory / "signature.json").read_text())
        onnx.checker.check_model(directory / "model.onnx", full_check=True)
        graph = onnx.load(directory / "model.onnx").graph
        assert [one.name for one in graph.input] == [one["name"] for one in signature["inputs"]]
        assert [one.name for one in graph.output] == [one["name"] for one in signature["outputs"]]
        assert {node.op_type for node in graph.node} & {"Loop", "Scan", "SequenceEmpty"} == set()
        entries = json.loads((directory / "manifest.json").read_text())["files"]
        assert {"model.onnx", "model.onnx.data", "load.py", "signature.json", "parity.json"} == {*entries}


def test_files_tell_nothing_of_the_machine(exports):
    for directory in exports.values():
        for file in (entry for entry in directory.iterdir() if entry.is_file()):  # not the loader's __pycache__
            content = file.read_bytes()
            assert not re.search(PATHS, content), file
            assert not re.search(rb"torchrec|trainer|custom|\.py", content) or file.suffix != ".onnx", file


def test_a_damaged_weight_is_found(exports, tmp_path):
    for file in (entry for entry in exports["own"].iterdir() if entry.is_file()):
        content = bytearray(file.read_bytes())
        content[-1] ^= file.suffix == ".data"
        (tmp_path / file.name).write_bytes(content)
    with pytest.raises(AssertionError, match=r"model\.onnx\.data is damaged or missing"):
        ask_onnx((tmp_path, parity_of(exports["own"])["columns"]))


WRONG = {
    "an operation that ONNX lacks": ([], "model.name is 'custom:Bessel', which cannot be written in ONNX: No "),
    "a compiled model": (["--compile", "True"], "--compile is True, which compiles model.pt2, but --format is onnx"),
    "no such format": (["--format", "tflite"], "--format is 'tflite'"),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_wrong_input(runs, tmp_path, capfd, flags, words):
    assert trainer(words_of(runs, "bessel", tmp_path / "to", "--format", "onnx", *flags)) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert words in line
    assert not (tmp_path / "to").exists()


def test_the_trainer_imports_none_of_it_unasked(tmp_path):
    """Nor does any other of its commands, which are all imported where this is forked."""
    code = "import sys, torchx_recsys.apps.export.export; print({'onnx', 'onnxscript', 'onnxruntime'} & {*sys.modules})"
    assert run_forked(exec, code, folder=tmp_path) == "set()\n"


def test_what_an_interrupted_export_left_is_not_loaded(runs, tmp_path):
    (tmp_path / "step-10").mkdir()
    (tmp_path / "step-10/model.onnx").write_text("half")
    directory = export(runs, "own", tmp_path)
    (found,) = ask((directory, parity_of(directory)["columns"]))
    assert_parity(directory, found)


def test_without_the_packages(runs, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert trainer(words_of(runs, "own", tmp_path / "to", "--format", "onnx")) == 2
    assert "needs the package onnxruntime; pip install 'torchx-recsys[onnx]'" in capfd.readouterr().err
    assert not (tmp_path / "to").exists()


def test_the_endpoint_does_not_serve_it(exports, capfd):
    assert trainer(["serve", "--directory", str(exports["own"])]) == 2
    assert "which cannot be served: it holds model.onnx; export with --format torch" in capfd.readouterr().err
