"""What an earlier version wrote is read by this one: runs, checkpoints, plans, exports (see record.py)."""

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from command import run_trainer
from exported import ask, parity_of, step_directory
from jobs import losses

VERSIONS = sorted(path.name for path in Path(__file__).parent.glob("[0-9]*"))


@pytest.fixture(params=VERSIONS)
def recorded(request, tmp_path, monkeypatch):
    """A copy of what a version wrote, in the working directory."""
    shutil.copytree(Path(__file__).parent / request.param, tmp_path / "recorded")
    monkeypatch.chdir(tmp_path / "recorded")
    return tmp_path / "recorded"


def evaluations(run):
    lines = map(json.loads, (run / "evaluations.jsonl").read_text().splitlines())
    return {line["split"]: line for line in lines}


def test_its_checkpoints_have_the_metrics_that_it_reported(recorded):
    for step in (3, 6):
        done = run_trainer("evaluate", "config.toml", "--out", "run", "--checkpoint", step)
        assert done.returncode == 0, done.stderr
        found = json.loads((recorded / "run/evaluation-test.json").read_text())
        assert found["step"] == step
    expected = evaluations(recorded / "run")["test"]
    metrics = [name for name in expected if name not in ("step", "split", "time")]
    assert "auc" in metrics
    assert [found[name] for name in metrics] == pytest.approx([expected[name] for name in metrics], abs=1e-6)


def test_its_run_goes_on_under_its_own_configuration_and_plan(recorded):
    before = losses(recorded / "run")
    moved = ("--data.accept-changed", "True")  # the data lay elsewhere
    flags = ("--train.steps", 8, "--planner.plan", "run/plan.json", *moved)
    done = run_trainer("train", "run/config.toml", "--out", "run", "--resume", "must", *flags, ranks=2)
    assert done.returncode == 0, done.stderr
    after = losses(recorded / "run")
    assert after[: len(before)] == before
    assert len(after) == 8
    assert np.isfinite(after).all()


def test_its_run_goes_on_with_the_rounding_that_it_began_with(recorded):
    """The configuration says nothing of keys whose defaults were others."""
    flags = ("--train.steps", 8, "--data.accept-changed", "True")
    done = run_trainer("train", "config.toml", "--out", "run", "--resume", "must", *flags)
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((recorded / "run/config.toml").read_text())
    assert config["train"]["compile"] is config["optimizer"]["dense"]["fused"] is False


def test_its_checkpoint_is_exported_and_fine_tuned(recorded):
    words = ("export", "config.toml", "--out", "run", "--to", "again")
    assert run_trainer(*words).returncode == 0
    assert parity_of(step_directory(recorded / "again")) == parity_of(step_directory(recorded / "exports"))
    words = ("train", "config.toml", "--out", "tuned", "--finetune.checkpoint", "run", "--train.steps", 2)
    done = run_trainer(*words)
    assert done.returncode == 0, done.stderr
    assert losses(recorded / "tuned")[0] < losses(recorded / "run")[0]


def test_its_export_answers(recorded):
    directory = step_directory(recorded / "exports")
    parity = parity_of(directory)
    (answers,) = ask((directory, parity["columns"]))
    assert answers.keys() == parity["answers"].keys()
    for name, expected in parity["answers"].items():
        np.testing.assert_allclose(answers[name], expected, rtol=1e-6)
