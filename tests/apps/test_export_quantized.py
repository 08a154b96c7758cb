"""Exports with quantized tables: how far they are from float32, and that the files say so."""

import json
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from exported import ask, parity_of, step_directory
from jobs import config, launch, write_rows
from ready_made import ready_made, write_ratings

from torchx_recsys.apps.export.quantized import BITS, QuantizedTable
from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_export.py stands for all")

ALLOWED = {"int8": 0.001, "int4": 0.005}  # of AUC
ROWS = 4000


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    data = write_rows(folder / "data", [ROWS], row_group_size=1000)
    changes = {"data__validation": [str(data)], "evaluate__metrics": ["auc", "normalized_entropy"]}
    trees = {
        "run": config(data, train__steps=60, **changes),
        "two_tower": ready_made("two_tower", write_ratings(folder)),
    }
    launch([{"config": tree, "out": str(folder / name)} for name, tree in trees.items()], 1, folder)
    return folder


def export(runs, name, *flags, run="run"):
    words = ["export", runs / run / "config.toml", "--out", runs / run, "--to", runs / name, *flags]
    assert trainer([str(word) for word in words]) == 0
    return step_directory(runs / name)


@pytest.fixture(scope="module")
def exports(runs):
    return {name: export(runs, name, "--quantize", name) for name in ("none", "int8", "int4")}


def auc(scores, labels):
    """Computed from ranks, ties by their mean."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]
    positive = labels > 0.5
    return (ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2) / (positive.sum() * (~positive).sum())


def test_little_is_lost_and_the_signature_says_how_much(runs, exports):
    table = pq.read_table(runs / "data")
    columns = {name: table[name].to_pylist() for name in (*(f"d{i}" for i in range(2)), *(f"s{i}" for i in range(6)))}
    names = [*exports]
    answers = ask(*((exports[name], columns) for name in names))
    labels = table["label"].to_numpy()
    found = {name: auc(np.array(one["label_probability"]), labels) for name, one in zip(names, answers, strict=True)}
    assert found["none"] > 0.7
    for name, allowed in ALLOWED.items():
        signature = json.loads((exports[name] / "signature.json").read_text())
        assert signature["tables"] == name
        assert abs(found[name] - found["none"]) < allowed
        quality = signature["quality"]
        # The trainer's AUC is that of a histogram of logits.
        assert quality["float32"]["auc"] == pytest.approx(found["none"], abs=1e-4)
        assert quality[name]["auc"] == pytest.approx(found[name], abs=1e-4)
        assert quality[name]["samples"] == ROWS
        assert answers[names.index(name)] != answers[0]


def recall(queries, items, wanted, k):
    """The share of the queries whose item is among the first k, of places shared by equal scores a part."""
    scores = np.array(queries) @ np.array(items).T
    own = scores[np.arange(len(wanted)), wanted][:, None]
    above, level = (scores > own).sum(1), (scores == own).sum(1)
    return (np.clip(k - above, 0, level) / level).mean()


@pytest.mark.more("a detail")
def test_the_metrics_of_a_retrieval_model_rank_the_catalogue(runs):
    directory = export(runs, "two_tower-int4", "--quantize", "int4", "--split", "test", run="two_tower")
    split, items = pq.read_table(runs / "ratings/test"), pq.read_table(runs / "ratings/items.parquet")
    names = [column["name"] for column in json.loads((directory / "signature.json").read_text())["columns"]]
    of_items = {
        name: items[name].to_pylist() if name in items.column_names else [None] * items.num_rows for name in names
    }
    asked, catalogue = ask((directory, {name: split[name].to_pylist() for name in names}), (directory, of_items))
    liked = split["label"].to_numpy() > 0
    places = {item: place for place, item in enumerate(items["item_id"].to_pylist())}
    wanted = np.array([places[item] for item in split["item_id"].to_pylist()])[liked]
    quality = json.loads((directory / "signature.json").read_text())["quality"]
    found = {k: recall(np.array(asked["liked_query"])[liked], catalogue["liked_item"], wanted, k) for k in (10, 50)}
    assert found[50] > 0
    for k, value in found.items():
        assert quality["int4"][f"recall@{k}"] == pytest.approx(value, abs=0.5 / liked.sum())
    assert trainer(["evaluate", str(runs / "two_tower/config.toml"), "--out", str(runs / "two_tower")]) == 0
    evaluated = json.loads((runs / "two_tower/evaluation-test.json").read_text())
    assert quality["float32"] == pytest.approx({name: evaluated[name] for name in quality["float32"]}, rel=1e-6)
    assert quality["int4"]["mrr"] != quality["float32"]["mrr"]


def bytes_of_weights(file):
    with zipfile.ZipFile(file) as archive:
        return sum(entry.file_size for entry in archive.infolist() if "/weights/weight_" in entry.filename)


def test_files_are_smaller(exports):
    tables = {"none": 4 * 16, "int8": 16 + 4, "int4": 8 + 4}  # bytes of a row
    rows = sum(100 + i for i in range(6))
    sizes = {name: bytes_of_weights(directory / "model.pt2") for name, directory in exports.items()}
    for name in ALLOWED:
        assert sizes["none"] - sizes[name] == (tables["none"] - tables[name]) * rows


@pytest.mark.more("test_little_is_lost_and_the_signature_says_how_much asks it")
def test_parity_rows_are_those_of_the_quantized_model(exports):
    directories = [exports[name] for name in ALLOWED]
    for directory, found in zip(directories, ask(*((d, parity_of(d)["columns"]) for d in directories)), strict=True):
        for output, values in parity_of(directory)["answers"].items():
            np.testing.assert_allclose(found[output], values, atol=1e-6)


@pytest.mark.parametrize("quantization", BITS)
@pytest.mark.parametrize("columns", [1, 7, 16])
def test_values_are_within_half_a_step(quantization, columns):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(300, columns, generator=generator) * torch.logspace(-3, 3, 300)[:, None]
    weight[5], weight[6] = 0.0, 2.5
    table = QuantizedTable(weight, BITS[quantization])
    found = table(torch.arange(300)).double().numpy()
    wanted = weight.double().numpy()
    span = wanted.max(1) - wanted.min(1)
    step = span / (2 ** BITS[quantization] - 1)
    # float16 rounds scale and bias by 2^-11 of themselves, and those below 6e-5 by 3e-8.
    rounding = 2**-11 * (span + np.abs(wanted.min(1))) + 2**-24 * 2 ** BITS[quantization]
    assert (np.abs(found - wanted).max(1) <= step * 0.5001 + rounding).all()
    bits = table.values.numel() * 8 / weight.numel()
    assert bits == (8 if quantization == "int8" else 8 * ((columns + 1) // 2) / columns)


def test_a_word_that_is_no_format(runs, tmp_path, capfd):
    words = ["export", runs / "run/config.toml", "--out", runs / "run", "--to", tmp_path, "--quantize", "int2"]
    assert trainer([str(word) for word in words]) == 2
    assert "--quantize is 'int2'" in capfd.readouterr().err


def test_without_a_compiler(runs, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["export", runs / "run/config.toml", "--out", runs / "run", "--to", tmp_path / "to", "--compile", "True"]
    assert trainer([str(word) for word in words]) == 2
    assert "--compile is True, which needs g++" in capfd.readouterr().err
    assert not (tmp_path / "to").exists()
