"""Random data sets go all the way: checked, configured, trained on, predicted, exported, loaded and served."""

import json
import random
import tomllib
from itertools import product

import numpy as np
import pytest
from command import write_config
from endpoint import Served
from exported import ask, step_directory
from forked import run_forked, trainers
from predictions import read
from random_features import with_more_features
from random_schemas import draw_data, has_only_numbers
from sent_columns import sent_columns

from torchx_recsys.apps.export.load import load
from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_check_data_config.py takes data sets of others all the way")

SAMPLE = random.Random(0).sample(range(300), 5)
MATRIX = ("number", lambda whole: range(300) if whole else SAMPLE)
TOLERANCE = 1e-6  # of a probability in float32: batches of other sizes are added up in other orders


@pytest.fixture
def run(capfd):
    """Runs a command in this process, which succeeds; returns what it prints."""

    def run(*words):
        code, said = trainer([str(word) for word in words]), capfd.readouterr()
        assert (code, said.err) == (0, "")
        return said.out

    return run


@pytest.fixture
def refused(capfd):
    """Runs a command in this process, which is refused in one line."""

    def refused(*words):
        code, said = trainer([str(word) for word in words]), capfd.readouterr()
        assert code == 2
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1

    return refused


def test_it_goes_all_the_way(number, tmp_path, run, refused):
    made, config, found = draw_data(number), tmp_path / "first.toml", tmp_path / "found.json"
    data = made.write(tmp_path / "data")
    source = ["--source", data, "--reader", made.reader, "--label", made.label]
    run("check-data", *source, "--write-config", config, "--json", found)
    tree, left_out = tomllib.loads(config.read_text()), json.loads(found.read_text())["left_out"]
    assert {*made.columns} == {*used(tree["data"]), *left_out}
    if number % 2 and made.reader != "csv":  # of CSV files only columns that are named have types
        tree = with_more_features(tree, made, number)
    if has_only_numbers(number):
        tree = without_tables(tree)
    tree["data"] |= {"validation": tree["data"]["train"], "global_batch_size": 64}
    tree |= {"train": {"steps": 4}, "report": {"tensorboard": False}}
    run("check-data", write_config(config, tree), "--page", tmp_path / "page.html")
    answer_alike(made, data, config, tmp_path)
    for kind, name in product(("dense", "sparse"), made.meaningless):
        feature = {name: {} if kind == "dense" else {"rows": 9, "ids": "hash"}}
        wrong = tree | {"data": tree["data"] | {kind: tree["data"][kind] | feature}}
        refused("train", write_config(tmp_path / "wrong.toml", wrong), "--out", tmp_path / "wrong")


def without_tables(tree):
    """Returns a written configuration without sparse features, such as the buckets of numbers."""
    data = {key: value for key, value in tree["data"].items() if key != "sparse"}
    model = {key: value for key, value in tree["model"].items() if key != "embedding_dim"}
    optimizer = {key: tree["optimizer"][key] for key in ("dense", "ema")}
    optimizer["ema"].pop("tables")
    return tree | {"data": data, "model": model, "optimizer": optimizer}


def used(data):
    """Returns the columns that a written configuration uses."""
    features = [*data["dense"].items(), *data["sparse"].items()]
    others = [*data["labels"], *data.get("groups", ()), *filter(None, [data.get("weight")])]
    return [*others, *(one.get("column", name) for name, one in features)]


def answer_alike(made, data, config, folder):
    """Trains, and compares the predictions of all rows with the answers of the export, loaded and over HTTP."""
    runs, parts, exports = folder / "run", folder / "parts", folder / "exports"
    lines = [
        ["train", config, "--out", runs],
        ["predict", config, "--out", runs, "--source", data, "--to", parts, "--keep-columns", made.label],
        ["export", config, "--out", runs, "--to", exports],
    ]
    assert "Traceback" not in run_forked(trainers, *[[str(word) for word in words] for words in lines], folder=folder)
    directory, output = step_directory(exports), f"{made.label}_probability"
    predicted = read(parts)[output].to_numpy()
    columns = sent_columns(made.read(data), load(directory).signature, made.reader == "csv")
    (answers,) = ask((directory, columns))
    np.testing.assert_allclose(answers[output], predicted, rtol=0, atol=TOLERANCE)
    served = Served(directory, folder)
    ((status, content),) = served.ask({"columns": columns})
    served.process.kill()
    assert status == 200, content
    np.testing.assert_allclose(content["outputs"][output], predicted, rtol=0, atol=TOLERANCE)
    assert np.ptp(predicted) > 0
