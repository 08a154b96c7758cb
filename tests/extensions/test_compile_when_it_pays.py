"""`train.compile = "auto"`: what it decides, the bits of a killed run, and a line where it cannot compile."""

import json
import random
import shutil
import time

import numpy as np
import pytest
import torch
from command import run_trainer, start_trainer, write_config
from jobs import config, launch_rounds, losses, saved_tensors
from small_disk import fill, mounted_disk

from trainer.config.root import Config
from trainer.extensions.compiled import DECIDED
from trainer.extensions.compiled.graph_file import Costs, folder
from trainer.extensions.compiled.when_it_pays import MEASURED

STEPS = 90
MOMENTS = ("before", "while", "after")
CASES = [(moment, seed) for seed in range(10) for moment in MOMENTS]

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="it needs a C++ compiler: apt install g++")


def tree(rows, **changes):
    return config(rows, **{"train__steps": STEPS, "train__compile": "auto", "checkpoint__every_steps": 7} | changes)


def expect_seconds(settings, seconds):
    """Has a job of this process's environment believe that compiling takes so long."""
    file = Costs(Config.model_validate(settings)).file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"key": "none", "seconds": seconds}))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A user's cache, and torch's, in which nothing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield folder()


@pytest.fixture
def own_cache(cache, tmp_path, monkeypatch):
    """The same for one test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    return folder()


def decided(out):
    return json.loads((out / DECIDED).read_text())


@pytest.fixture(scope="module")
def whole(rows, cache, tmp_path_factory):
    """A run that was compiled and never disturbed, beside runs that never and always were."""
    out = tmp_path_factory.mktemp("whole")
    expect_seconds(tree(rows), 0.0)
    kinds = ("auto", True, False)
    jobs = [{"config": tree(rows, train__compile=kind), "out": str(out / str(kind))} for kind in kinds]
    launch_rounds([(1, jobs)], out)
    return out


@needs_compiler
def test_it_compiles_once_a_run_pays_for_it(whole):
    found = decided(whole / "auto")
    assert (found["first_step"], found["last_step"]) == (MEASURED + 1, STEPS)
    auto, compiled, eager = (np.array(losses(whole / kind)) for kind in ("auto", "True", "False"))
    assert (auto[:MEASURED] == eager[:MEASURED]).all()
    assert (auto[MEASURED:] != eager[MEASURED:]).any()
    assert (auto != compiled).any()
    np.testing.assert_allclose(auto, eager, rtol=1e-5)


@needs_compiler
@pytest.mark.few(2, "ten of each, of which a third compiles anew")
@pytest.mark.parametrize(("moment", "seed"), CASES)
def test_a_killed_run_ends_in_the_bits_that_it_would_have_had(rows, whole, cache, own_cache, tmp_path, moment, seed):
    """Killed at a random moment before, while and after it compiles."""
    settings, chance, out = tree(rows), random.Random(f"{moment} {seed}"), tmp_path / "killed"
    expect_seconds(settings, 0.0)
    if moment != "while":  # the machine code that the whole run has left
        for file in cache.glob("*.so"):
            shutil.copy(file, own_cache)
    words = ("train", write_config(tmp_path / "config.toml", settings), "--out", out)
    job = start_trainer(words, tmp_path / "output", tmp_path / "errors", 0)
    wanted = {"before": chance.randrange(1, MEASURED), "while": MEASURED, "after": chance.randrange(MEASURED + 1, 80)}
    wait_for_step(out, job, wanted[moment])
    time.sleep(chance.uniform(0, 3.0 if moment == "while" else 0.005))
    job.kill()
    job.wait()
    steps = taken(out)
    assert {"before": steps < STEPS, "while": steps == MEASURED, "after": MEASURED < steps < STEPS}[moment]
    done = run_trainer(*words)
    assert done.returncode == 0, done.stderr
    assert decided(out)["first_step"] == MEASURED + 1
    assert losses(out) == losses(whole / "auto")
    expected, found = saved_tensors(whole / "auto", STEPS), saved_tensors(out, STEPS)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def taken(out):
    file = out / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def wait_for_step(out, job, step):
    while taken(out) < step:
        assert job.poll() is None, "the run ended before it could be killed"
        time.sleep(0.001)


@needs_compiler
@pytest.mark.more("compiles another model")
def test_the_random_numbers_of_ones_own_layers_follow_from_the_step(rows, own_cache, tmp_path):
    settings = tree(rows, model__name="custom:Dropped")
    expect_seconds(settings, 0.0)
    whole, resumed = ({"config": settings, "out": str(tmp_path / name)} for name in ("whole", "resumed"))
    launch_rounds([(1, [whole])], tmp_path)
    assert decided(tmp_path / "whole")["first_step"] == MEASURED + 1
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    shutil.rmtree(tmp_path / f"resumed/checkpoints/step-{STEPS:09d}")
    launch_rounds([(1, [resumed | {"resume": "must"}])], tmp_path)
    assert losses(tmp_path / "resumed") == losses(tmp_path / "whole")


@needs_compiler
@pytest.mark.more("several ranks go on with a run of one")
@pytest.mark.parametrize("ranks", [2, 4])
def test_another_number_of_ranks_goes_on_from_the_same_step(rows, whole, cache, tmp_path, ranks):
    shutil.copytree(whole / "auto", tmp_path / "run")
    shutil.rmtree(tmp_path / f"run/checkpoints/step-{STEPS:09d}")
    launch_rounds([(ranks, [{"config": tree(rows), "out": str(tmp_path / "run"), "resume": "must"}])], tmp_path)
    assert decided(tmp_path / "run") == decided(whole / "auto")
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(whole / "auto"), rtol=1e-5)


def test_a_run_that_does_not_pay_for_it_stays_eager(rows, own_cache, tmp_path):
    done = train(rows, tmp_path)
    assert "train.compile = auto: not compiled, as it takes about 30.0 s and saves about 0.0 s of the 00:0" in done
    assert decided(tmp_path / "out")["first_step"] is None
    assert not own_cache.exists()
    longer = train(rows, tmp_path, "--train.steps", STEPS + MEASURED + 5)  # which decides again
    assert "train.compile = auto: not compiled" in longer
    assert decided(tmp_path / "out")["last_step"] == STEPS + MEASURED + 5


def train(rows, tmp_path, *flags, code=0, **environment):
    file = write_config(tmp_path / "config.toml", tree(rows))
    done = run_trainer("train", file, "--out", tmp_path / "out", *flags, **environment)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def only_line(output):
    (line,) = [line for line in output.splitlines() if line.startswith("train.compile = auto: not")]
    return line


@pytest.mark.parametrize("ranks", [0, 2])
def test_without_a_compiler_a_line_says_so(rows, own_cache, tmp_path, ranks):
    """On several ranks, too, where a pipeline has sent the ids of the batch already."""
    expect_seconds(tree(rows), 0.0)
    line = only_line(train(rows, tmp_path, ranks=ranks, PATH=""))
    assert line.startswith("train.compile = auto: not compiled, as that failed: ")
    assert "No working C++ compiler found" in line
    assert decided(tmp_path / "out")["first_step"] is None
    assert len(losses(tmp_path / "out")) == STEPS


WHY = {
    "a branch on values": ({"model__name": "custom:Branching"}, "not compiled, as its model takes no step without "),
    "a scaled loss": ({"train__precision": "fp16"}, "not compiled, as one graph cannot hold the dense part, its loss"),
    "a weight in a lambda": (
        {"model__name": "custom:Scaled"},
        "not compiled, as that failed: Please convert all",
    ),
    "a lock": ({"model__name": "custom:Locked"}, "not compiled, as that failed: cannot pickle"),
}


@needs_compiler
@pytest.mark.few(2, "the others differ in the reason")
@pytest.mark.parametrize("what", WHY)
def test_a_model_that_cannot_be_compiled_stays_eager(rows, own_cache, tmp_path, cache, monkeypatch, what):
    (changes, expected), out = WHY[what], tmp_path / "out"
    settings = tree(rows, **changes)
    expect_seconds(settings, 0.0)
    done = run_trainer("train", write_config(tmp_path / "config.toml", settings), "--out", out)
    assert done.returncode == 0, done.stderr
    assert only_line(done.stdout).removeprefix("train.compile = auto: ").startswith(expected)
    assert decided(out)["first_step"] is None
    assert len(losses(out)) == STEPS


@needs_compiler
def test_a_full_disk_of_the_cache_is_a_line(rows, own_cache, tmp_path, monkeypatch):
    with mounted_disk(tmp_path, 1) as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        expect_seconds(tree(rows), 0.0)
        fill(disk)
        output = train(rows, tmp_path)
        assert not [*folder().glob("*.so*")]
    (line,) = [line for line in output.splitlines() if line.startswith("the compiled dense part cannot be kept in ")]
    assert "No space left on device" in line
    assert decided(tmp_path / "out")["first_step"] == MEASURED + 1
    assert len(losses(tmp_path / "out")) == STEPS


@needs_compiler
def test_a_full_disk_of_the_compiler_is_a_line(rows, own_cache, tmp_path, monkeypatch):
    expect_seconds(tree(rows), 0.0)
    with mounted_disk(tmp_path, 1) as disk:
        fill(disk)
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(disk))
        line = only_line(train(rows, tmp_path))
    assert "No space left on device" in line
    assert decided(tmp_path / "out")["first_step"] is None
    assert len(losses(tmp_path / "out")) == STEPS
