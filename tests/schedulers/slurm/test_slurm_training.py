"""Training on a real Slurm that is interrupted, and resumes with the results of an undisturbed run."""

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from command import run_trainer, write_config
from jobs import config, losses, saved_tensors
from shells import wait_for
from slurm_shell import Shell, number
from trainer_process import Gate, committed, is_rank

pytestmark = pytest.mark.slurm

STEPS = 100
GATE = 50  # beyond the first checkpoints, and far from the end
STOPS = "training stops after this step"


@pytest.fixture(scope="module")
def trainings(clusters, rows, tmp_path_factory):
    shell = Shell(clusters(True), tmp_path_factory.mktemp("training"))
    tree = config(rows, model__name="custom:gated", train__steps=STEPS, checkpoint__every_steps=20)
    write_config(shell.folder / "small.toml", tree)
    return shell


class Disturbed:
    """A job that waits at a gate for what the test does to it."""

    def __init__(self, shell, name, *args, cfg="", nodes="2x1", **variables):
        self.shell, self.name, self.gate = shell, name, Gate(shell.folder / f"{name}.gate", GATE)
        self.handle = train(shell, name, *args, cfg=cfg, nodes=nodes, **self.gate.environment, **variables)

    def wait_for_the_gate(self):
        """Waits until all steps before the gate are done, and a checkpoint is committed."""
        out = self.shell.folder / self.name
        self._wait_until(lambda: committed(out) and losses_written(out) >= GATE - 2)

    def open_once_warned(self):
        """Opens the gate as soon as rank 0 has the signal to stop."""
        logs = self.shell.job_dir(self.handle) / f"slurm-{number(self.handle)}"
        self._wait_until(lambda: any(STOPS in log.read_text() for log in logs.glob("trainer-*")))
        self.gate.open()

    def _wait_until(self, condition):
        deadline = time.monotonic() + 600
        while not condition():
            log = self.shell.batch_log(self.handle)
            assert time.monotonic() < deadline, log + self.shell.torchx("log", self.handle)
            time.sleep(0.1)


def losses_written(out):
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def train(shell, name, *args, cfg="", nodes="2x1", out="", **variables):
    job = ("dlrm.multi_node", "--config", "small.toml", "-j", nodes, "--cpu", "1", "--memMB", "2000")
    env = ("--env", ",".join(f"{key}={value}" for key, value in variables.items())) if variables else ()
    return shell.submit(*job, "--out", out or name, *env, *args, cfg=cfg)


@pytest.fixture(scope="module")
def undisturbed(trainings):
    """The directory of a run that nothing stops, outside Slurm."""
    out = trainings.folder / "undisturbed"
    train_outside(trainings, out)
    return out


def train_outside(shell, out, *flags, **variables):
    """Trains on two ranks of this machine, and returns what they print."""
    done = run_trainer("train", shell.folder / "small.toml", "--out", out, *flags, ranks=2, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def assert_went_on(job, undisturbed):
    """The job has finished as the undisturbed one, bit for bit, and did not start from the beginning again."""
    shell, handle = job.shell, job.handle
    status = shell.wait(handle, seconds=600)
    log = shell.torchx("log", handle)
    assert status["state"] == "SUCCEEDED", shell.batch_log(handle) + log
    assert status["num_restarts"] >= 1
    assert "resumed after step" in log
    assert_as_if_undisturbed(shell.folder / job.name, undisturbed)


def assert_as_if_undisturbed(run, undisturbed):
    assert losses(run) == losses(undisturbed)
    expected, found = saved_tensors(undisturbed, STEPS), saved_tensors(run, STEPS)
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        assert torch.equal(found[tensor], value), tensor


def rank_of(out: str) -> int:
    """The process of a rank of the run, on this machine."""
    for process in psutil.process_iter(["cmdline"]):
        if out in (process.info["cmdline"] or []) and is_rank(process):
            return process.pid
    raise AssertionError(f"no rank of {out} runs")


def test_movielens_to_the_end(trainings, tmp_path):
    shell = trainings
    made = shell.submit("data.movielens", "--out", "data/movielens")
    assert shell.wait(made)["state"] == "SUCCEEDED", shell.torchx("log", made)
    gate = Gate(shell.folder / "movielens.gate", 30)
    env = ",".join(f"{name}={value}" for name, value in gate.environment.items())
    job = ("dlrm.multi_node", "--config", "movielens", "-j", "2x1", "--cpu", "1", "--memMB", "2000", "--env", env)
    model = ("--model.name", "custom:gated", "--report.interval-steps", "10", "--checkpoint.every-steps", "20")
    handle = shell.submit(*job, "--", "--train.steps", "40", *model)
    assert_shows_progress(shell, handle, gate)
    followed = shell.torchx("log", "--tail", handle, cwd=tmp_path)
    assert "2 ranks on cpu" in followed
    assert "test: auc" in followed
    status = shell.wait(handle)
    assert status["state"] == "SUCCEEDED"
    assert status["msg"].startswith("succeeded: finished at step 40; replica 0 on n")
    evaluation = (shell.folder / "runs" / number(handle) / "evaluations.jsonl").read_text().splitlines()[-1]
    assert json.loads(evaluation)["samples"] == 10_000
    assert shell.listed()[handle] == "SUCCEEDED"


def assert_shows_progress(shell, handle, gate):
    """The job stands at the gate: it is in the right step, and with a frozen rank makes no progress."""
    file = shell.job_dir(handle) / f"slurm-{number(handle)}" / "training.json"
    wait_for(lambda: file.exists() and json.loads(file.read_text())["saved_step"] == 20)
    wait_for(lambda: json.loads(file.read_text())["step"] == 30)
    running = r"running, step 30/40, [\d,]+ samples/s, loss 0\.\d{5}, ETA 00:\d\d, saved step 20 \(\d+ \w+ ago\)"
    status = shell.status(handle)
    assert re.match(rf"{running}; replica 0 on ", status["msg"])
    assert (status["progress"]["step"], status["progress"]["stalled"]) == (30, False)
    rank = rank_of("custom:gated")
    os.kill(rank, signal.SIGSTOP)
    gate.open()
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"time": content["time"] - 200}))
    stands = r"step 30/40, no progress since (?:\S+ )?\d\d:\d\d \(\d+ min\)"
    assert re.match(rf"running, {stands}, loss 0\.\d{{5}}, saved step 20 ", shell.status(handle)["msg"])
    assert re.search(rf"^{handle} .* RUNNING +{stands}$", shell.torchx("list", "-s", "slurm"), re.MULTILINE)
    os.kill(rank, signal.SIGCONT)


@pytest.mark.more("Slurm's clocks")
def test_warnings_and_crash(trainings, undisturbed):
    """Two jobs at once: one comes to its time limit, and a rank of the other, which has two nodes, is killed."""
    shell = trainings
    limited = Disturbed(shell, "limited", cfg="nodelist=n3,time=2,signal_lead=30", nodes="1x2")
    crashed = Disturbed(shell, "crashed", "--max_retries", "1", cfg="nodelist=n[1-2]")
    with ThreadPoolExecutor(1) as pool:  # which opens the gate as soon as it may, as the job has not long to save
        opened = pool.submit(limited.open_once_warned)
        crashed.wait_for_the_gate()
        os.kill(rank_of("crashed"), signal.SIGKILL)
        crashed.gate.open()
    opened.result()
    for job in (crashed, limited):
        assert_went_on(job, undisturbed)
    assert "requeued: stopped at step" in shell.batch_log(limited.handle)
    assert "failure 1 of at most 1 that are retried" in shell.batch_log(crashed.handle)


@pytest.mark.more("Slurm's clocks")
def test_the_error_of_a_rank_is_in_the_status(trainings):
    shell = trainings
    (shell.folder / "bad").write_text("n2")
    model = ("--", "--model.name", "custom:unhurried_on_good_nodes")
    handle = train(shell, "broken", *model, cfg="nodelist=n[1-2]", BAD_NODES=shell.folder / "bad")
    assert shell.wait(handle)["state"] == "FAILED"
    expected = r"first error: trainer/1, rank \d: RuntimeError: a GPU of this node is broken"
    assert re.search(expected, shell.torchx("status", handle)), shell.batch_log(handle) + shell.torchx("log", handle)


@pytest.mark.more("Slurm's clocks")
def test_preemption(trainings, undisturbed):
    shell = trainings
    job = Disturbed(shell, "preempted", cfg="exclusive=True")
    job.wait_for_the_gate()
    urgent = shell.shell_job("true", "--num_replicas", "3", cfg="partition=high,exclusive=True")
    job.open_once_warned()
    assert shell.wait(urgent)["state"] == "SUCCEEDED"
    assert "stopped at step" in shell.batch_log(job.handle)
    assert_went_on(job, undisturbed)


@pytest.mark.more("Slurm's clocks")
@pytest.mark.sample(1)
@pytest.mark.parametrize("kill_wait", [30, 5])
def test_cancelled(kill_wait, trainings, undisturbed, clusters):
    """A cancelled job saves the step that it has reached, which takes 8 s, if Slurm lets it, and does not come back.

    If not, nothing that was saved before is damaged. It goes on outside Slurm.
    """
    cluster = clusters(kill_wait == 30)
    assert f"KillWait                = {kill_wait} sec" in cluster.run("scontrol", "show", "config")
    shell, name = Shell(cluster, trainings.folder), f"cancelled-{kill_wait}"
    slower, url = shell.folder / f"{name}.slower", f"slow://{shell.folder}/{name}"
    job = Disturbed(shell, name, out=url, SLOWER=slower)
    job.wait_for_the_gate()
    slower.touch()
    shell.torchx("cancel", job.handle)
    job.open_once_warned()
    status = shell.wait(job.handle)
    slower.unlink()
    assert (status["state"], status["num_restarts"]) == ("CANCELLED", 0), shell.batch_log(job.handle)
    saved = committed(shell.folder / name)[-1]
    if kill_wait == 30:
        assert f"cancelled: stopped at step {saved}, saved" in shell.batch_log(job.handle)
        assert saved % 20, "only a save on request is of such a step"
    else:
        assert "stopped at step" not in shell.batch_log(job.handle)
        assert saved % 20 == 0
    assert f"resumed after step {saved}" in train_outside(shell, url, SLOWER=str(slower))
    assert_as_if_undisturbed(shell.folder / name, undisturbed)


@pytest.mark.more("Slurm's clocks")
@pytest.mark.sample(1)
@pytest.mark.parametrize("lost", ["replica", "batch"])
def test_power_cut(lost, trainings, undisturbed):
    """A node is lost that runs only a replica of the job, or its batch script, too."""
    shell = trainings
    job = Disturbed(shell, f"lost-{lost}", cfg=f"nodelist={'n[1-2]' if lost == 'replica' else 'n[2-3]'}")
    job.wait_for_the_gate()
    shell.cluster.cut_power("n2")
    job.gate.open()
    shell.wait(job.handle, "PENDING")
    shell.cluster.start_node("n2")
    assert_went_on(job, undisturbed)
    assert not (shell.job_dir(job.handle) / f"slurm-{number(job.handle)}" / "failures").exists()
