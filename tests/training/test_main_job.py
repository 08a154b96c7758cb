"""The main job, from outside: `make demo` in a real shell on real ratings, and training on a known truth."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from command import run_trainer
from reader import Reader, evaluations_in

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "trainer/config/presets"


def torchx(*arguments, cwd, path):
    job = ["torchx", "run", "-s", "local_cwd", *arguments]
    done = subprocess.run(job, cwd=cwd, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stderr


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def demo(tmp_path_factory, path):
    """The directory of a reader who types `make demo` twice, with what it printed."""
    reader = Reader(tmp_path_factory.mktemp("reader") / "torchx-recsys", path)
    return reader.folder, [reader.type("make demo") for _ in range(2)]


def test_the_demo_is_as_the_first_run_shows_it(demo):
    _, (first, again) = demo
    assert [int(step) for step in re.findall(r"step (\d+)/237", first)] == [*range(20, 237, 20), 237]
    assert [step for step, split in evaluations_in(first) if split == "validation"] == ["80", "160", "237"]
    shown = evaluations_in((ROOT / "docs/tutorials/first_run.md").read_text())
    assert shown[("237", "test")] == pytest.approx(evaluations_in(first)[("237", "test")], abs=2e-3)
    assert "resumed after step 237" in again
    assert "/237" not in again
    assert evaluations_in(again)[("237", "test")] == pytest.approx(shown[("237", "test")], abs=2e-3)


def test_movielens_reaches_its_auc(demo):
    test = lines(demo[0] / "runs/movielens/evaluations.jsonl")[-1]
    assert test["split"] == "test"
    assert test["samples"] == 10_000
    assert test["auc"] > 0.72


def test_movielens_leaves_a_committed_checkpoint_and_tensorboard_files(demo):
    out = demo[0] / "runs/movielens"
    assert (out / "checkpoints/step-000000237/manifest.json").exists()
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.more("a minute; MovieLens reaches its AUC")
def test_synthetic_comes_close_to_the_best_possible_auc(tmp_path, path, request):
    """The more rows, the closer."""
    rows, distance = (1_000_000, 0.01) if request.config.getoption("all") else (200_000, 0.02)
    torchx("data.synthetic", "--rows", str(rows), cwd=tmp_path, path=path)
    torchx(
        "dlrm.single_node", "--config", "synthetic", "--out", "runs/synthetic", "--cpu", "1", cwd=tmp_path, path=path
    )
    best = json.loads((tmp_path / "data/synthetic/summary.json").read_text())["splits"]["test"]["best_auc"]
    test = lines(tmp_path / "runs/synthetic/evaluations.jsonl")[-1]
    assert test["split"] == "test"
    assert best - distance < test["auc"] <= best


@pytest.mark.few(2, "two stand for all")
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [path.stem for path in sorted(CONFIGS.glob("*.toml"))])
def test_every_preset_can_be_planned(name):
    memory = 512 if name == "dlrmv4" else 64
    done = run_trainer("plan", name, "--world-size", 8, "--planner.host-memory-gib", memory)
    assert done.returncode == 0, done.stderr
    assert "proven" in done.stdout


def test_every_preset_begins_with_its_commands():
    for path in CONFIGS.glob("*.toml"):
        head = path.read_text().split("\n\n")[0]
        assert f"--config {path.stem}" in head
        assert "torchx run data." in head
