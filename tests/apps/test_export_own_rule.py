"""A rule for ids of the user's own, in one file of another directory: trained, exported in every form, and served."""

import json
import shutil
from pathlib import Path

import numpy as np
import own_rules
import pyarrow.parquet as pq
import pytest
import torch
from endpoint import Served
from exported import ONNX_ALONE, TORCH_ALONE, ask, export, parity_of
from jobs import launch, losses
from transformed import transformed_config, write_transformed

from torchx_recsys.apps.export.load import ColumnError, load
from trainer.__main__ import main as trainer
from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.rules.hashing import hash_bytes

pytestmark = pytest.mark.more("test_export.py has rules")

RATES = {"optimizer__sparse__learning_rate": 0.5, "optimizer__dense__learning_rate": 0.02}
COLUMNS = ("price", "user", "wide", "word", "tags", "terms", "place")


def features(rule: str) -> dict:
    own = {"rows": 37, "ids": f"own_rules:{rule}"}
    return {
        "user": own,
        "wide": own | {"options": {"width": 3}, "pooling": "mean"},
        "word": own,
        "tags": own | {"offset": 4, "options": {"width": 2, "lowest": 0}, "max_ids": 3},
        "terms": own,
        "place": {"rows": 41},
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run whose rules have NumPy forms alone, and one whose rules have forms in torch, too."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_transformed(folder / "data")
    trees = {name: transformed_config(data, train__steps=10, **RATES) for name in ("Blocks", "BlocksInTorch")}
    for name, tree in trees.items():
        tree["data"] |= {"dense": {"price": {"mean": 5.0, "std": 30.0}}, "sparse": features(name)}
    launch([{"config": tree, "out": str(folder / name)} for name, tree in trees.items()], 1, folder)
    return folder


@pytest.fixture(scope="module")
def columns(runs):
    table = pq.read_table(runs / "data/part.parquet").to_pydict()
    return {name: table[name] for name in COLUMNS}


@pytest.fixture(scope="module")
def predicted(runs):
    to = runs / "predictions"
    words = ["predict", f"{runs}/Blocks/config.toml", "--out", f"{runs}/Blocks", "--to", str(to)]
    assert trainer([*words, "--source", str(runs / "data")]) == 0
    return pq.read_table([*to.glob("*.parquet")])["label_probability"].to_numpy()


def batches_of(tree):
    config = Config.model_validate(tree).data
    files = find_files("data.train", config.train, config)
    lanes = Lanes(files.rows, 1, 100)
    return [*Loader(files, config, lanes, 0, 1, seed=0, shuffle=False).batches(0, lanes.steps)]


def test_batches_have_the_rows_that_the_rule_gives(runs, columns):
    tree = transformed_config(runs / "data")
    tree["data"]["sparse"] = features("Blocks")
    batches = batches_of(tree)

    def number(text):
        return int.from_bytes(hash_bytes(text.encode()), "little", signed=True)

    def rows(name, values):
        signed = {"wide": lambda n: n - 2**64 if n >= 2**63 else n, "tags": lambda n: n + 4}.get(name, lambda n: n)
        kept = [number(one) if isinstance(one, str) else signed(one) for one in values or [] if one is not None]
        width = {"wide": 3, "tags": 2}.get(name, 10)
        return [one // width % 37 for one in (kept[-3:] if name == "tags" else kept)]

    for name in ("user", "wide", "word", "tags", "terms"):
        bags = [batch.sparse[name] for batch in batches]
        found = [ids.tolist() for bag in bags for ids in bag.values().split(bag.lengths().tolist())]
        expected = [rows(name, one if isinstance(one, list) else [one]) for one in columns[name]]
        assert found[: len(expected)] == expected, name


def test_both_forms_train_alike(runs):
    assert losses(runs / "Blocks") == losses(runs / "BlocksInTorch")


FORMS = {
    "program": ((), {"without": TORCH_ALONE}),
    "int8": (("--quantize", "int8"), {"without": TORCH_ALONE}),
    "shards": (("--shard-bytes", "1000"), {"without": TORCH_ALONE}),
    "onnx": (("--format", "onnx"), {"without": ONNX_ALONE}),
}


@pytest.mark.few(1, "one stands for all")
@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "form"), [*(("Blocks", form) for form in FORMS), ("BlocksInTorch", "program"), ("BlocksInTorch", "onnx")]
)
def test_every_form_of_an_export_answers_as_predictions_do(runs, columns, predicted, tmp_path, name, form):
    flags, asked = FORMS[form]
    if "onnx" in flags:
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    directory = export(runs, name, tmp_path, *flags)
    carried = [*directory.glob("rules/*")]
    assert [file.name for file in carried] == (["own_rules.py"] if name == "Blocks" else [])
    if carried:  # run by the loader, in NumPy
        assert carried[0].read_text() == Path(own_rules.__file__).read_text()
        asked = {"without": tuple(one for one in asked["without"] if one != "numpy")}
    (found,) = ask((directory, columns), **asked)
    np.testing.assert_allclose(found["label_probability"], predicted, rtol=0, atol=1e-3 if "int8" in flags else 1e-6)
    assert np.ptp(predicted) > 1e-2


def test_is_served(runs, tmp_path):
    directory = export(runs, "Blocks", tmp_path / "to")
    served = Served(directory, tmp_path)
    try:
        parity = parity_of(directory)
        ((status, content),) = served.ask({"columns": parity["columns"]})
        assert status == 200
        for name, values in parity["answers"].items():
            np.testing.assert_allclose(content["outputs"][name], values, atol=1e-6)
        ((status, content),) = served.ask({"columns": parity["columns"] | {"tags": [[-9]] * 64}})
        assert (status, content) == (400, {"error": "column 'tags': id -5 is below 0"})
    finally:
        served.process.kill()


def test_the_loader_needs_nothing_but_the_directory(runs, columns, tmp_path):
    directory = export(runs, "Blocks", tmp_path / "to")
    shutil.copytree(directory, tmp_path / "copy")
    model, other = load(directory), load(tmp_path / "copy")
    assert torch.equal(model(columns)["label_probability"], other(columns)["label_probability"])
    entry = next(
        one for one in json.loads((directory / "signature.json").read_text())["columns"] if one["name"] == "tags"
    )
    assert entry["rule"] == "own_rules:Blocks"
    assert entry["source"] == "rules/own_rules.py"
    assert entry["options"] == {"width": 2, "lowest": 0}
    with pytest.raises(ColumnError, match="column 'tags': id -1 is below 0"):
        model({name: values[:1] for name, values in columns.items()} | {"tags": [[-5]]})


WRONG = {
    "no such module": (
        {"ids": "no_rules:Rule"},
        r"data\.sparse\.user\.ids is 'no_rules:Rule', which cannot be imported",
    ),
    "no such rule": ({"ids": "modul"}, r"data\.sparse\.user\.ids is 'modul'; did you mean 'modulo'\?"),
    "an unknown option": (
        {"ids": "own_rules:Blocks", "options": {"size": 1}},
        r"data\.sparse\.user\.ids is 'own_rules:Blocks', which does not take data\.sparse\.user\.options: .*'size'",
    ),
    "options without a rule": (
        {"ids": "hash", "options": {"size": 1}},
        r"data\.sparse\.user\.options is \{'size': 1\}, but data\.sparse\.user\.ids is 'hash', which is no rule of",
    ),
    "rows outside": ({"ids": "own_rules:Astray"}, r"got the row 37, which is outside \[0, 37\)"),
    "a refused id": ({"ids": "own_rules:Blocks", "options": {"lowest": 0}}, r"which refuses ids: id -\d+ is below 0"),
}


@pytest.mark.parametrize(("keys", "message"), WRONG.values(), ids=WRONG)
def test_wrong_rules(runs, keys, message):
    tree = transformed_config(runs / "data")
    tree["data"]["sparse"] = {"user": {"rows": 37} | keys}
    with pytest.raises((InputError, ValueError), match=message):
        batches_of(tree)


def test_a_file_that_imports_more_than_numpy_is_not_carried(runs, tmp_path, capsys, monkeypatch):
    (tmp_path / "importing.py").write_text("import pyarrow\nfrom own_rules import Blocks\n")
    monkeypatch.syspath_prepend(tmp_path)
    tree = transformed_config(runs / "data")
    tree["data"] |= {
        "dense": {"price": {"mean": 5.0, "std": 30.0}},
        "sparse": features("Blocks") | {"user": {"rows": 37, "ids": "importing:Blocks"}},
    }
    launch([{"config": tree | {"train": {"steps": 1}}, "out": str(tmp_path / "run")}], 1, tmp_path)
    words = ["export", tmp_path / "run/config.toml", "--out", tmp_path / "run", "--to", tmp_path / "to"]
    assert trainer([str(word) for word in words]) == 2
    assert "whose file imports own_rules; an export carries the file" in capsys.readouterr().err
