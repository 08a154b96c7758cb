"""Training on a real Slurm that is interrupted, and resumes with the results of an undisturbed run."""

import json
import os
import re
import signal
import time

import psutil
import pytest
import torch
from command import write_config
from jobs import config, losses, saved_tensors
from slurm_shell import Shell, number
from trainer_process import committed

pytestmark = pytest.mark.slurm

STEPS = 300
FAR_ENOUGH = 45  # beyond the first checkpoints, and far from the end


@pytest.fixture(scope="module")
def trainings(clusters, rows, tmp_path_factory):
    shell = Shell(clusters(True), tmp_path_factory.mktemp("training"))
    tree = config(rows, model__name="custom:unhurried", train__steps=STEPS, checkpoint__every_steps=20)
    write_config(shell.folder / "small.toml", tree)
    return shell


def train(shell, name, *args, cfg=""):
    job = ("dlrm.multi_node", "--config", "small.toml", "-j", "2x1", "--cpu", "1", "--memMB", "2000", "--out", name)
    return shell.submit(*job, *args, cfg=cfg)


@pytest.fixture(scope="module")
def undisturbed(trainings):
    """The directory of a run that nothing stops."""
    trainings.wait(train(trainings, "undisturbed"))
    return trainings.folder / "undisturbed"


def wait_for_steps(shell, handle, name, count=FAR_ENOUGH):
    out = shell.folder / name
    metrics = out / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not committed(out) or metrics.read_text().count("\n") < count:
        assert time.monotonic() < deadline, shell.batch_log(handle) + shell.torchx("log", handle)
        time.sleep(0.05)


def assert_went_on(shell, handle, name, undisturbed):
    """The job has finished as the undisturbed one, bit for bit, and did not start from the beginning again."""
    status = shell.wait(handle, seconds=600)
    log = shell.torchx("log", handle)
    assert status["state"] == "SUCCEEDED", shell.batch_log(handle) + log
    assert status["num_restarts"] >= 1
    assert "resumed after step" in log
    assert_as_if_undisturbed(shell.folder / name, undisturbed)


def assert_as_if_undisturbed(run, undisturbed):
    assert losses(run) == losses(undisturbed)
    expected, found = saved_tensors(undisturbed, STEPS), saved_tensors(run, STEPS)
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        assert torch.equal(found[tensor], value), tensor


def rank_of(out: str) -> int:
    """The process of a rank of the run, on this machine."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if out in words and words[1:3] == ["-u", "-m"]:
            return process.pid
    raise AssertionError(f"no rank of {out} runs")


def test_movielens_to_the_end(trainings, tmp_path):
    shell = trainings
    made = shell.submit("data.movielens", "--out", "data/movielens")
    assert shell.wait(made)["state"] == "SUCCEEDED", shell.torchx("log", made)
    job = ("dlrm.multi_node", "--config", "movielens", "-j", "2x1", "--cpu", "1", "--memMB", "2000")
    handle = shell.submit(*job, "--", "--train.steps", "40")
    followed = shell.torchx("log", "--tail", handle, cwd=tmp_path)
    assert "2 ranks on cpu" in followed
    assert "test: auc" in followed
    status = shell.wait(handle)
    assert status["state"] == "SUCCEEDED"
    assert status["msg"].startswith("succeeded: finished at step 40; replica 0 on n")
    evaluation = (shell.folder / "runs" / number(handle) / "evaluations.jsonl").read_text().splitlines()[-1]
    assert json.loads(evaluation)["samples"] == 10_000
    assert shell.listed()[handle] == "SUCCEEDED"


def test_warnings_and_crash(trainings, undisturbed):
    """Three jobs at once: one comes to its time limit, one is warned as if it did, and a rank of the last is killed."""
    shell = trainings
    limited = train(shell, "limited", "--env", "STEP_SECONDS=0.3", cfg="nodelist=n[2-3],time=2,signal_lead=30")
    warned = train(shell, "warned", cfg="nodelist=n[1-2]")
    crashed = train(shell, "crashed", "--max_retries", "1", cfg="nodelist=n[1-2]")
    wait_for_steps(shell, warned, "warned")
    shell.cluster.run("scancel", "--signal=USR1", "--batch", number(warned))
    wait_for_steps(shell, crashed, "crashed")
    os.kill(rank_of("crashed"), signal.SIGKILL)
    for handle, name in ((warned, "warned"), (crashed, "crashed"), (limited, "limited")):
        assert_went_on(shell, handle, name, undisturbed)
    assert "requeued: stopped at step" in shell.batch_log(warned)
    assert "requeued: stopped at step" in shell.batch_log(limited)
    assert "failure 1 of at most 1 that are retried" in shell.batch_log(crashed)


def test_the_error_of_a_rank_is_in_the_status(trainings):
    shell = trainings
    (shell.folder / "bad").write_text("n2")
    model = ("--", "--model.name", "custom:unhurried_on_good_nodes")
    env = ("--env", f"BAD_NODES={shell.folder / 'bad'}")
    handle = train(shell, "broken", *env, *model, cfg="nodelist=n[1-2]")
    assert shell.wait(handle)["state"] == "FAILED"
    expected = r"first error: trainer/1, rank \d: RuntimeError: a GPU of this node is broken"
    assert re.search(expected, shell.torchx("status", handle)), shell.batch_log(handle) + shell.torchx("log", handle)


def test_preemption(trainings, undisturbed):
    shell, name = trainings, "preempted"
    handle = train(shell, name, cfg="exclusive=True")
    wait_for_steps(shell, handle, name)
    urgent = shell.shell_job("true", "--num_replicas", "3", cfg="partition=high,exclusive=True")
    assert shell.wait(urgent)["state"] == "SUCCEEDED"
    assert "stopped at step" in shell.batch_log(handle)
    assert_went_on(shell, handle, name, undisturbed)


@pytest.mark.parametrize("kill_wait", [30, 5])
def test_cancelled(kill_wait, trainings, undisturbed, clusters):
    """A cancelled job saves the step that it has reached, which takes 8 s, if Slurm lets it, and does not come back.

    If not, nothing that was saved before is damaged.
    """
    cluster = clusters(kill_wait == 30)
    assert f"KillWait                = {kill_wait} sec" in cluster.run("scontrol", "show", "config")
    shell, name = Shell(cluster, trainings.folder), f"cancelled-{kill_wait}"
    slower = shell.folder / f"{name}.slower"
    slow = ("--env", f"SLOWER={slower}", "--", "--checkpoint.every_steps", "20")
    handle = train(shell, f"slow://{shell.folder}/{name}", *slow)
    wait_for_steps(shell, handle, name)
    slower.touch()
    shell.torchx("cancel", handle)
    status = shell.wait(handle)
    slower.unlink()
    assert (status["state"], status["num_restarts"]) == ("CANCELLED", 0), shell.batch_log(handle)
    saved = committed(shell.folder / name)[-1]
    if kill_wait == 30:
        assert f"cancelled: stopped at step {saved}, saved" in shell.batch_log(handle)
        assert saved % 20, "only a save on request is of such a step"
    else:
        assert "stopped at step" not in shell.batch_log(handle)
        assert saved % 20 == 0
    handle = train(shell, f"slow://{shell.folder}/{name}", *slow)
    assert shell.wait(handle)["state"] == "SUCCEEDED", shell.torchx("log", handle)
    assert f"resumed after step {saved}" in shell.torchx("log", handle)
    assert_as_if_undisturbed(shell.folder / name, undisturbed)


def test_power_cut(trainings, undisturbed):
    """A node is lost that runs the batch script of one job, and only a replica of the other."""
    shell = trainings
    nodes = {"low": "n[1-2]", "high": "n[2-3]"}
    jobs = {name: train(shell, name, cfg=f"nodelist={nodes[name]}") for name in nodes}
    for name, handle in jobs.items():
        wait_for_steps(shell, handle, name)
    shell.cluster.cut_power("n2")
    for handle in jobs.values():
        shell.wait(handle, "PENDING")
    shell.cluster.start_node("n2")
    for name, handle in jobs.items():
        assert_went_on(shell, handle, name, undisturbed)
        assert not (shell.job_dir(handle) / f"slurm-{number(handle)}" / "failures").exists()
