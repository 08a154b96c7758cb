"""Going back in a run over segments: a new run directory that trains on as the run itself did, or without bad days."""

import json
import os
import shutil
import signal
import time
import zlib

import pytest
from command import run_trainer, start_trainer, write_config
from jobs import config, losses, write_rows
from trainer_process import committed

from torchx_recsys.apps.runs.rewind import rewind
from torchx_recsys.apps.runs.saved_tensors import read_tensors
from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory

DAYS = {"a": 200, "b": 90, "c": 64, "d": 150}
LAST = 10
"""Steps of 64 samples of all days."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with days and a configuration."""
    folder = tmp_path_factory.mktemp("rewind")
    for seed, (name, size) in enumerate(DAYS.items()):
        write_rows(folder / "days" / name, [size], seed)
    keep = {"newest": 1, "segments": 9}
    tree = config(
        folder, data__segments={"path": f"{folder}/days/{{segment}}"}, checkpoint={"keep": keep, "full_every": 3}
    )
    del tree["data"]["train"], tree["train"]["steps"]
    write_config(folder / "config.toml", tree)
    return folder


def train(folder, out, *flags, ranks=0):
    done = run_trainer("train", folder / "config.toml", "--out", out, *flags, ranks=ranks)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(folder):
    """The directory of a run over all days."""
    train(folder, folder / "run")
    return folder / "run"


def words(run, segment, to):
    return ["rewind", "--out", run, "--segment", segment, "--to", to]


def go_back(run, segment, to):
    done = run_trainer(*words(run, segment, to))
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(run, segment, to):
    done = run_trainer(*words(run, segment, to))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr


def content(folder):
    """The CRC-32 of each file."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): zlib.crc32(file.read_bytes()) for file in files}


def assert_same(run, other):
    for name in ("segments.jsonl", "evaluations.jsonl"):
        assert (run / name).read_text() == (other / name).read_text()
    assert losses(run) == losses(other)
    here, there = (read_tensors(Checkpoints(RunDirectory(str(one))).newest().url) for one in (run, other))
    assert here.keys() == there.keys()
    assert all(here[name].equal(there[name]) for name in here)


@pytest.mark.parametrize("ranks", [0, 2])
def test_trained_on_it_is_the_run_itself(folder, run, tmp_path, ranks):
    if ranks:
        train(folder, run := tmp_path / "run", ranks=ranks)
    before = content(run)
    said = go_back(run, "b", tmp_path / "new")
    assert content(run) == before
    assert committed(tmp_path / "new") == [4, 6]  # the second is a delta on the first
    shape = f"dlrm.multi_node -j 1x{max(1, ranks)} --config {tmp_path}/new/config.toml --out {tmp_path}/new"
    assert f"Next:  torchx run {shape} -- --data.segments.skip c\n" in said
    facts = json.loads((tmp_path / "new/run.json").read_text())
    assert (facts["state"], facts["step"]) == ("stopped", 6)
    assert facts["outcome"] == f"stopped at step 6, after segment b of {run}"
    assert f"resumed after step 6 from {tmp_path}/new" in train(folder, tmp_path / "new", ranks=ranks)
    assert max(committed(tmp_path / "new")) == LAST
    assert_same(tmp_path / "new", run)


def test_without_a_bad_day_it_is_a_run_that_never_had_it(folder, run, tmp_path):
    train(folder, tmp_path / "never", "--data.segments.skip", "b", "--data.segments.until", "a")
    shutil.move(folder / "days/b", tmp_path / "b")
    train(folder, tmp_path / "never")
    shutil.move(tmp_path / "b", folder / "days/b")
    go_back(run, "a", tmp_path / "new")
    train(folder, tmp_path / "new", "--data.segments.skip", "b")
    assert_same(tmp_path / "new", tmp_path / "never")


def test_after_a_segment_that_was_trained_on_late(folder, tmp_path):
    shutil.copytree(folder / "days", tmp_path / "days")
    shutil.copy(folder / "config.toml", tmp_path)
    flags = ["--data.segments.path", f"{tmp_path}/days/{{segment}}", "--data.segments.changed", "train"]
    train(folder, tmp_path / "run", *flags, "--data.segments.skip", "a", "c", "--data.segments.until", "b")
    train(folder, tmp_path / "run", *flags, "--data.segments.until", "b")
    go_back(tmp_path / "run", "a", tmp_path / "new")
    train(folder, tmp_path / "run", *flags, "--data.segments.until", "c")
    said = train(folder, tmp_path / "new", *flags, "--data.segments.until", "c")
    assert "came after" not in said
    assert [json.loads(line)["segment"] for line in (tmp_path / "new/segments.jsonl").open()] == ["b", "a", "c"]
    assert_same(tmp_path / "new", tmp_path / "run")


@pytest.mark.parametrize("files", [1, 4])
def test_a_killed_one_is_made_up_for(folder, run, tmp_path, files):
    run = shutil.copytree(run, tmp_path / "run")
    go_back(run, "c", tmp_path / "whole")
    to = f"slow://{tmp_path}/new"
    output = tmp_path / "output"
    process = start_trainer(words(run, "c", to), output, output, 0)
    while len([*tmp_path.glob("new/checkpoints/*/*")]) < files:
        assert process.poll() is None, output.read_text()
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not committed(tmp_path / "new")
    if files == 1:  # as it is killed after its first file
        for one in (tmp_path / "new").iterdir():
            if one.name != "rewind.json":
                shutil.rmtree(one) if one.is_dir() else one.unlink()
    done = run_trainer("train", folder / "config.toml", "--out", tmp_path / "new")
    assert (done.returncode, "which a rewind has begun and not completed" in done.stderr) == (2, True)
    go_back(run, "c", to)
    assert content(tmp_path / "new") == content(tmp_path / "whole")
    train(folder, tmp_path / "new", "--checkpoint.keep.segments", "0")
    before = content(tmp_path / "new")
    shutil.rmtree(run)
    go_back(run, "c", to)
    assert content(tmp_path / "new") == before


def test_from_one_storage_to_another(run, tmp_path):
    rewind(str(run), "c", f"{tmp_path}/here")
    rewind(str(run), "c", "memory://there")
    rewind("memory://there", "c", f"{tmp_path}/back")
    here, back = content(tmp_path / "here"), content(tmp_path / "back")
    assert {name for name in here | back if here.get(name) != back.get(name)} == {"rewind.json", "run.json"}


def test_what_one_cannot_go_back_to(folder, run, tmp_path):
    mine = shutil.copytree(run, tmp_path / "run")
    there = "one can go back to: a, b, c, d; checkpoint.keep.segments keeps those at the ends of more segments"
    said = refused(mine, "e", tmp_path / "new")
    assert said == f"error: --segment is 'e', at whose end '{mine}' has no checkpoint; {there}\n"
    assert "which is in --out" in refused(mine, "b", mine / "checkpoints/new")
    assert "which is in --out" in refused(mine, "b", mine)
    assert f"--to is '{folder}', which holds something else" in refused(mine, "b", folder)
    assert "no run over segments" in refused(tmp_path / "nothing", "b", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    go_back(mine, "b", tmp_path / "new")
    said = refused(mine, "c", tmp_path / "new")
    assert f"'{tmp_path}/new', which holds '{mine}' after segment b; name a new directory" in said
    damaged = next(mine.glob("checkpoints/step-000000007/*.distcp"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert f"--out: '{damaged}' is damaged: it has " in refused(mine, "c", tmp_path / "third")
    (mine / "checkpoints/step-000000004/.metadata").unlink()
    assert ".metadata" in refused(mine, "a", tmp_path / "fourth")
    assert not committed(tmp_path / "third")
