"""DLRMv4 in small, killed twenty times and resumed: in every bit as if it had never been disturbed."""

import contextlib
import json
import random

import pytest
import torch
from command import run_trainer, write_config
from jobs import losses, saved_tensors
from trainer_process import committed

pytestmark = pytest.mark.more("a run is killed twenty times; test_resume.py has one that is resumed once")

KILLS, MOST_STEPS = 20, 9
FLAGS = (
    *("--data.global-batch-size", "16", "--model.dropout", "0.1", "--evaluate.every-samples", "160"),
    *("--checkpoint.every-steps", "3", "--report.interval-steps", "1", "--report.tensorboard", "False"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with a log of few users, and what they are asked about in windows of a day."""
    folder = tmp_path_factory.mktemp("killed")
    done = run_trainer("yambda", "--out", folder / "data/yambda", "--users", 110)
    assert done.returncode == 0, done.stderr
    return folder


def train_and_kill(out, ranks, *flags):
    """Trains, and kills a rank after random numbers of further steps, which are not those of its checkpoints."""
    chance = random.Random(ranks)
    for _ in range(KILLS):
        killer = {"rank": chance.randrange(max(1, ranks)), "steps": chance.randint(1, MOST_STEPS)}
        tree = {"base": "dlrmv4_small", "report": {"watchers": {"own_watchers:Killer": killer}}}
        done = run_trainer("train", write_config(out.with_suffix(".toml"), tree), "--out", out, *flags, ranks=ranks)
        assert done.returncode != 0, done.stdout
    done = run_trainer("train", "dlrmv4_small", "--out", out, *flags, ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert "resumed after step" in done.stdout


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("recompute", ["False", "True"])
def test_a_run_that_is_killed_twenty_times_has_the_same_bits(folder, tmp_path, recompute, ranks):
    flags = (*FLAGS, "--train.recompute", recompute)
    with contextlib.chdir(folder):
        done = run_trainer("train", "dlrmv4_small", "--out", tmp_path / "whole", *flags, ranks=ranks)
        assert done.returncode == 0, done.stderr
        train_and_kill(tmp_path / "killed", ranks, *flags)
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    whole, found = ((tmp_path / name / "evaluations.jsonl").read_text() for name in ("whole", "killed"))
    assert [json.loads(line) for line in found.splitlines()] == [json.loads(line) for line in whole.splitlines()]
    (*_, last) = committed(tmp_path / "whole")
    assert committed(tmp_path / "killed")[-1] == last == len(losses(tmp_path / "whole"))
    expected, tensors = (saved_tensors(tmp_path / name, last) for name in ("whole", "killed"))
    assert {*tensors} == {*expected}
    for name, tensor in expected.items():
        assert torch.equal(tensors[name], tensor), name
