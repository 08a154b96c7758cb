"""Exported models: answers without torchrec and without the trainer, equal to the trainer's own.

By default three built-in models are exported; `--all` exports all, and compiles one.
"""

import json
import re
import shutil
import subprocess
import zipfile

import numpy as np
import pyarrow.parquet as pq
import pytest
from exported import ask, environment_with, first_rows, parity_of, step_directory
from jobs import config, launch, write_rows
from raw_columns import columns_config, write_columns
from ready_made import NAMES, ready_made, sampled, write_ratings
from sequences import sequence_config, write_histories

from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.__main__ import main as trainer
from trainer.checkpoint.store import find_damage
from trainer.core.storage import open_storage

STEPS = 10
PATHS = rb"/(tmp|work|home|root|usr|site-packages)/"
RATES = {"optimizer__sparse__learning_rate": 0.5, "optimizer__dense__learning_rate": 0.05}


MATRIX = "name", lambda whole: sampled(NAMES, 1, whole)


@pytest.fixture(scope="module")
def runs(matrix, tmp_path_factory):
    """Runs of built-in models, of one with every rule and averages, of one's own, and of one with float16 tables."""
    folder = tmp_path_factory.mktemp("runs")
    ratings, plain = write_ratings(folder), write_rows(folder / "plain", [130])
    raw, histories = write_columns(folder / "raw"), write_histories(folder / "histories", 130)
    vocabulary((str(raw),), ("listed",), str(folder / "vocabulary"), min_count=8, unseen_rows=3)
    every_rule = columns_config(
        raw,
        folder / "vocabulary/listed.parquet",
        optimizer__ema={"decay": 0.8, "tables": True},
        planner__sharding_types=["column_wise"],
        planner__min_columns=4,
        train__steps=STEPS,
    )
    here = {"train__steps": STEPS, **RATES}
    layers = {"model__dropout": 0.2, "model__normalization": "batch", "model__activation": "silu"}
    trees = {name: ready_made(name, ratings, **layers, **here) for name in matrix}
    trees |= {
        "rules": every_rule,
        "own": sequence_config(histories, "custom:SumOfSequences", data__validation=[str(histories)], **here),
        "half": config(
            plain,
            data__validation=[str(plain)],
            model__table_precision="fp16",
            model__tables={"s0": {"precision": "fp32"}},
            **here,
        ),
        "dense_averages": config(plain, data__validation=[str(plain)], optimizer__ema={"decay": 0.8}, **here),
    }
    trees["branching"] = config(plain, data__validation=[str(plain)], model={"name": "custom:Branching"}, **here)
    del trees["own"]["model"]["target"], trees["own"]["model"]["history"], trees["own"]["model"]["over_layers"]
    launch([{"config": tree, "out": str(folder / name)} for name, tree in trees.items()], 2, folder)
    return folder


def export(runs, name, to, *flags):
    """Exports a run and returns the directory."""
    words = ["export", runs / name / "config.toml", "--out", runs / name, "--to", to, *flags]
    assert trainer([str(word) for word in words]) == 0
    return step_directory(to)


def evaluated(runs, name, split="validation"):
    """What the command evaluates of a run."""
    words = ["evaluate", str(runs / name / "config.toml"), "--out", str(runs / name), "--split", split]
    assert trainer(words) == 0
    return json.loads((runs / name / f"evaluation-{split}.json").read_text())


@pytest.fixture(scope="module")
def exports(runs):
    """Directories by run."""
    names = [name for file in runs.glob("*/config.toml") if (name := file.parent.name) != "branching"]
    return {name: export(runs, name, runs / "exports" / name) for name in names}


@pytest.fixture(scope="module")
def answers(exports):
    """The outputs of all models for their parity rows."""
    directories = exports.values()
    return dict(zip(exports, ask(*((one, parity_of(one)["columns"]) for one in directories)), strict=True))


def assert_parity(directory, found, exact):
    expected = parity_of(directory)["answers"]
    assert found.keys() == expected.keys()
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, rtol=0, atol=0 if exact else 1e-6)
        assert np.ptp(np.asarray(values), axis=0).max() > 1e-4


@pytest.mark.more("rules and models of one's own are compared, too")
def test_built_in_models_answer_as_the_trainer_does(exports, answers, name):
    assert_parity(exports[name], answers[name], exact=False)


@pytest.mark.parametrize("run", ["rules", "own", "half"])
def test_rules_and_models_of_ones_own_too(exports, answers, run):
    assert_parity(exports[run], answers[run], exact=False)


def test_without_lists_and_transforms_the_answers_are_exact(exports, answers):
    assert_parity(exports["half"], answers["half"], exact=True)


def test_one_sample_and_empty_lists(exports):
    directory = exports["rules"]
    parity = parity_of(directory)
    columns, expected = parity["columns"], parity["answers"]
    nothing = {name: [None] for name in columns}
    row = next(row for row in range(64) if columns["tags"][row] and columns["history"][row])
    alone, none, again = ask(
        (directory, first_rows(columns, slice(row, row + 1))),
        (directory, nothing),
        (directory, {name: [None, None] for name in columns}),
    )
    for output, values in expected.items():
        np.testing.assert_allclose(alone[output], values[row : row + 1], atol=1e-6)
        assert np.isfinite(none[output]).all()
        np.testing.assert_allclose(again[output], none[output] * 2, atol=1e-7)


@pytest.mark.sample(1)
@pytest.mark.parametrize("run", ["rules", "half", "dense_averages"])
def test_raw_rows_have_the_evaluation_of_the_trainer(runs, exports, run):
    """The whole split through the loader has the log loss that the command finds, averaged weights or not."""
    found = evaluated(runs, run)
    table = pq.read_table([*(runs / ("raw" if run == "rules" else "plain")).glob("*.parquet")])
    names = [column["name"] for column in json.loads((exports[run] / "signature.json").read_text())["columns"]]
    (outputs,) = ask((exports[run], {name: table[name].to_pylist() for name in names}))
    for label in ("label", "bought") if run == "rules" else ("label",):
        p, y = np.array(outputs[f"{label}_probability"], np.float64), table[label].to_numpy().astype(np.float64)
        log_loss = -(y * np.log(p) + (1 - y) * np.log1p(-p)).mean()
        assert log_loss == pytest.approx(found[f"log_loss/{label}" if run == "rules" else "log_loss"], rel=1e-6)


@pytest.mark.more("test_averages.py has both")
def test_trained_weights_instead_of_averages(runs, exports, tmp_path):
    directory = export(runs, "rules", tmp_path, "--averages", "False")
    assert parity_of(directory)["answers"] != parity_of(exports["rules"])["answers"]
    assert json.loads((directory / "signature.json").read_text())["averages"] is False


@pytest.mark.more("rare")
def test_a_key_that_a_resume_may_change_does_not_stand_in_the_way(runs, exports, tmp_path):
    directory = export(runs, "rules", tmp_path, "--data.sparse.user.evict", "least_recent")
    assert parity_of(directory) == parity_of(exports["rules"])


def contents(file):
    """The texts of a file; of an archive, of all that is in it."""
    if not zipfile.is_zipfile(file):
        return [file.read_bytes()]
    with zipfile.ZipFile(file) as archive:
        return [archive.read(name) for name in archive.namelist()]


def test_files_tell_nothing_of_the_machine_and_hold_no_pickle(runs, exports):
    for directory in exports.values():
        for file in directory.iterdir():
            for content in contents(file):
                assert not re.search(PATHS, content), file
                assert b"torchrec" not in content or file.name == "load.py"
                assert not content.startswith((b"\x80\x02", b"\x80\x04", b"PK")), file


def test_the_manifest_has_every_file(exports):
    directory = exports["half"]
    entries = json.loads((directory / "manifest.json").read_text())["files"]
    assert {*entries, "manifest.json"} == {file.name for file in directory.iterdir()}
    assert find_damage(*open_storage(str(directory)), entries) is None


WRONG = {
    "a step without a checkpoint": (["--checkpoint", "7"], "--checkpoint is 7, which is no committed checkpoint"),
    "a word": (["--checkpoint", "latest"], "--checkpoint is 'latest'; allowed: newest, best"),
    "no metric": (["--checkpoint", "best"], "has no checkpoint.keep.best"),
    "an empty split": (["--split", "test"], "--split is test, but data.test is empty"),
    "no such split": (["--split", "all"], "--split is 'all'"),
    "no averages": (["--averages", "True"], "train with optimizer.ema.decay"),
    "other rows": (["--data.sparse.s0.rows", "99"], "data.sparse.s0.rows is 99, but the run was trained with 100"),
    "another rule": (["--data.sparse.s0.ids", "hash"], "data.sparse.s0.ids is 'hash'"),
    "another mean": (["--data.dense.d0.mean", "1"], "data.dense.d0.mean is 1.0"),
    "another model": (["--model.over-layers", "8"], "is another model's"),
    "no data": (["--data.validation", "nowhere/*.parquet"], "data.validation: no Parquet file"),
    "an unknown flag": (["--quantise", "int8"], "--quantise"),
    "a place that cannot be written": (["--to", "/proc/nothing"], "--to is '/proc/nothing'"),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_wrong_input(runs, tmp_path, capfd, flags, words):
    to = [] if "--to" in flags else ["--to", str(tmp_path / "to")]
    command = ["export", str(runs / "half/config.toml"), "--out", str(runs / "half"), *to, *flags]
    assert trainer(command) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert words in line
    assert not [*tmp_path.rglob("manifest.json")]
    assert not [*tmp_path.rglob("current.json")]


def test_what_stands_in_the_way_of_a_model_of_ones_own_is_said_in_one_line(runs, tmp_path, capfd):
    run, to = str(runs / "branching"), tmp_path / "to"
    assert trainer(["export", f"{run}/config.toml", "--out", run, "--to", str(to)]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: model.name is 'custom:Branching', which torch.export cannot trace: ")
    assert "data-dependent" in line
    assert not to.exists()


@pytest.mark.more("rare")
def test_what_an_interrupted_export_left_is_replaced(runs, tmp_path):
    (tmp_path / "step-10").mkdir()
    (tmp_path / "step-10/model.pt2").write_text("half")
    (tmp_path / "step-10/manifest.json.0a1b2c3d.partial").write_text("half")
    directory = export(runs, "half", tmp_path)
    assert not [*tmp_path.rglob("*.partial")]
    (found,) = ask((directory, parity_of(directory)["columns"]))
    assert_parity(directory, found, exact=True)


def test_the_same_export_again_is_there_already(runs, tmp_path, capfd):
    directory = export(runs, "half", tmp_path)
    times = {file.name: file.stat().st_mtime_ns for file in directory.iterdir()}
    (tmp_path / "current.json").write_text('{"directory": "step-7"}')
    assert export(runs, "half", tmp_path) == directory
    assert "step 10 is in" in capfd.readouterr().out.splitlines()[-1]
    assert {file.name: file.stat().st_mtime_ns for file in directory.iterdir()} == times
    command = ["export", str(runs / "half/config.toml"), "--out", str(runs / "half"), "--to", str(tmp_path)]
    assert trainer([*command, "--quantize", "int8"]) == 2
    assert (
        "holds step-10 already: made of another checkpoint or configuration, or with other flags"
        in capfd.readouterr().err
    )
    (directory / "parity.json").write_text("{}")
    assert trainer(command) == 2
    assert "holds step-10 already: parity.json is damaged" in capfd.readouterr().err


def test_an_environment_with_torch_alone_is_enough(exports, tmp_path):
    python = environment_with("torch", tmp_path / "venv")
    for package in ("torchrec", "numpy", "pyarrow", "trainer"):
        assert subprocess.run([python, "-I", "-c", f"import {package}"], capture_output=True).returncode == 1
    directory = exports["rules"]
    (found,) = ask((directory, parity_of(directory)["columns"]), python=python)
    assert_parity(directory, found, exact=False)


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
@pytest.mark.sample(0)  # compiles for half a minute
def test_machine_code_answers_the_same(runs, tmp_path):
    directory = export(runs, "rules", tmp_path, "--compile", "True", "--quantize", "int8")
    parity = parity_of(directory)
    one = {name: values[:1] for name, values in parity["columns"].items()}
    many, single = ask((directory, parity["columns"]), (directory, one), compiled=True)
    for output, values in parity["answers"].items():
        np.testing.assert_allclose(many[output], values, atol=1e-6)
        np.testing.assert_allclose(single[output], values[:1], atol=1e-6)
    for content in contents(directory / "compiled.pt2"):
        assert not re.search(PATHS, content)
