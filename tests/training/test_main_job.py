"""The main job, from outside: data and training through the real `torchx`, on real ratings and on a known truth."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import run_trainer

CONFIGS = Path(__file__).parents[2] / "trainer/config/presets"


def torchx(*arguments, cwd):
    done = subprocess.run(["torchx", "run", "-s", "local_cwd", *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stderr


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def movielens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("movielens")
    torchx("data.movielens", cwd=folder)
    output = torchx(
        *("dlrm.multi_node", "--config", "movielens", "-j", "1x2", "--out", "runs/movielens"),
        *("--", "--train.epochs", "2"),
        cwd=folder,
    )
    return folder, output


def test_movielens_reaches_its_auc(movielens):
    folder, output = movielens
    test = lines(folder / "runs/movielens/evaluations.jsonl")[-1]
    assert test["split"] == "test"
    assert test["samples"] == 10_000
    assert test["auc"] > 0.72
    assert "2 ranks on cpu" in output


def test_movielens_leaves_a_committed_checkpoint_and_tensorboard_files(movielens):
    out = movielens[0] / "runs/movielens"
    assert (out / "checkpoints/step-000000158/manifest.json").exists()
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))


def test_the_same_command_with_more_epochs_resumes(movielens):
    folder, _ = movielens
    output = torchx(
        *("dlrm.single_node", "--config", "movielens", "--out", "runs/movielens", "--resume", "must"),
        cwd=folder,
    )
    assert "resumed after step 158" in output
    records = lines(folder / "runs/movielens/metrics.jsonl")
    steps = [record["step"] for record in records]
    assert steps == sorted(set(steps))
    assert steps[-1] == 237
    output = torchx("dlrm.evaluate", "--config", "runs/movielens/config.toml", "--out", "runs/movielens", cwd=folder)
    assert "step 237  test: auc 0.7" in output


def test_two_nodes_train_as_one_does(movielens, tmp_path):
    """Two agents on this machine meet at a port of their own, and so do those of another job at the same time."""
    folder, _ = movielens
    shutil.copytree(folder / "data", tmp_path / "data")
    job = ["torchx", "run", "-s", "local_cwd", "dlrm.multi_node", "--config", "movielens"]
    started = [
        subprocess.Popen(
            [*job, "-j", shape, "--out", out, "--", "--train.steps", "20"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for out, shape in (("one", "2x2"), ("two", "2x1"))
    ]
    for process in started:
        output = process.communicate()[1]
        assert process.returncode == 0, output[-4000:]
    about = json.loads((tmp_path / "one/run.json").read_text())
    assert (about["world_size"], about["local_world_size"]) == (4, 2)
    reference = lines(folder / "runs/movielens/metrics.jsonl")[0]
    for out in ("one", "two"):
        assert lines(tmp_path / out / "metrics.jsonl")[0]["loss"] == pytest.approx(reference["loss"], rel=1e-5)


def test_data_parallel_is_the_same_training(movielens, tmp_path):
    folder, _ = movielens
    shutil.copytree(folder / "data", tmp_path / "data")
    torchx(
        *("dlrm.data_parallel", "--config", "movielens", "-j", "1x2", "--out", "runs/replicated"),
        *("--", "--train.epochs", "2"),
        cwd=tmp_path,
    )
    plan = (tmp_path / "runs/replicated/plan.json").read_text()
    assert plan.count('"data_parallel"') == 4
    replicated = lines(tmp_path / "runs/replicated/evaluations.jsonl")[-1]
    assert replicated["auc"] == pytest.approx(lines(folder / "runs/movielens/evaluations.jsonl")[2]["auc"], abs=0.02)


def test_synthetic_comes_close_to_the_best_possible_auc(tmp_path):
    run = [sys.executable, "-m", "trainer"]
    subprocess.run([*run, "synthetic"], cwd=tmp_path, check=True, capture_output=True)
    subprocess.run(
        [*run, "train", "synthetic", "--out", "runs/synthetic"], cwd=tmp_path, check=True, capture_output=True
    )
    best = json.loads((tmp_path / "data/synthetic/summary.json").read_text())["splits"]["test"]["best_auc"]
    test = lines(tmp_path / "runs/synthetic/evaluations.jsonl")[-1]
    assert test["split"] == "test"
    assert best - 0.01 < test["auc"] <= best


@pytest.mark.parametrize("name", [path.stem for path in CONFIGS.glob("*.toml")])
def test_every_preset_can_be_planned(name):
    done = run_trainer("plan", name, "--world-size", 8, "--planner.host-memory-gib", 64)
    assert done.returncode == 0, done.stderr
    assert "proven" in done.stdout


def test_every_preset_begins_with_its_commands():
    for path in CONFIGS.glob("*.toml"):
        head = path.read_text().split("\n\n")[0]
        assert f"--config {path.stem}" in head
        assert "torchx run data." in head
