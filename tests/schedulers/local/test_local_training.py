"""Training on `local_cwd`, started in one shell and watched and ended in others: no step is lost."""

import os
import re
import signal
from pathlib import Path

import psutil
import pytest
from command import run_trainer, write_config
from jobs import config, losses, write_rows
from shells import Shells, wait_for
from trainer_process import Gate, name_of

from schedulers.local.processes import processes_with

pytestmark = pytest.mark.more("test_main_job.py trains so, and test_preemption.py loses no step")

JOB = ("dlrm.multi_node", "--config", "config.toml")
STEPS, GATE = 80, 40
STOPS = "training stops after this step"


@pytest.fixture(scope="module")
def torchx(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    rows = write_rows(home / "rows", [130, 126])
    write_config(home / "config.toml", config(rows, model__name="custom:gated", checkpoint__every_steps=20))
    shells = Shells(home)
    yield shells
    shells.close()


@pytest.fixture(scope="module")
def undisturbed(torchx):
    """The losses of a run that nothing disturbs, without TorchX."""
    file, out = torchx.home / "config.toml", torchx.home / "undisturbed"
    done = run_trainer("train", file, "--out", out, "--train.steps", STEPS, ranks=2)
    assert done.returncode == 0, done.stderr
    return losses(out)


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate", GATE)


def job(out: str, steps: int, retries: int = 0, gate: Gate | None = None, nodes: str = "2x1") -> tuple[str, ...]:
    variables = {"OMP_NUM_THREADS": "1"} | (gate.environment if gate else {})
    env = ",".join(f"{name}={value}" for name, value in variables.items())
    return (
        *JOB,
        *("-j", nodes, "--env", env, "--max_retries", str(retries), "--out", out),
        *("--", "--train.steps", str(steps)),
    )


def train(torchx: Shells, out: str, steps: int) -> tuple[list[float], str]:
    """Trains to the end in a shell that waits; returns the losses of the run, and the output of the shell."""
    shell = torchx.open("run", "-s", "local_cwd", *job(out, steps))
    handle, said = shell.communicate(timeout=600)
    assert shell.returncode == 0, said
    assert torchx.status(handle.strip())["msg"] == f"finished at step {steps}"
    return losses(torchx.home / out), said


def steps_done(run: Path) -> int:
    return (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").exists() else 0


def rank_of(handle: str, rank: int) -> int:
    """The process of a rank of a job."""
    return next(process.pid for process in processes(handle) if name_of(process) == f"rank {rank}")


def processes(handle: str) -> list[psutil.Process]:
    """The processes of a job."""
    return processes_with("TORCHX_JOB_ID", handle)


def test_cancelled_from_another_shell_it_saves_and_goes_on_later(torchx, undisturbed, gate):
    handle = torchx.detached(*job("cancelled", 1_000_000, gate=gate))
    follower = torchx.open("log", "-f", f"{handle}/trainer/0")
    wait_for(lambda: steps_done(torchx.home / "cancelled") > 20)
    assert torchx.status(handle)["state"] == "RUNNING"
    listed = [line.split() for line in torchx("list", "-s", "local_cwd").stdout.splitlines()]
    (line,) = [line for line in listed if line[0] == handle]
    assert line[1:4] == ["dlrm", "RUNNING", "step"]
    assert 20 < int(line[4].partition("/")[0]) <= GATE
    torchx("cancel", handle)
    wait_for(lambda: STOPS in torchx("log", handle).stdout)
    gate.open()
    status = torchx.wait_for_end(handle)
    assert status["state"] == "CANCELLED"
    stopped = int(re.match(r"stopped at step (\d+), saved ", status["msg"])[1])
    followed = follower.communicate(timeout=600)[0]
    assert "[rank 0]" in followed
    assert "[rank 1]" not in followed
    assert processes(handle) == []
    went_on, said = train(torchx, "cancelled", STEPS)
    assert f"resumed after step {stopped}" in said
    assert went_on == undisturbed


@pytest.mark.more("test_restarts.py starts jobs again")
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("sent", "retries", "nodes"),
    [pytest.param(signal.SIGKILL, 1, "1x2", id="crash"), pytest.param(signal.SIGTERM, 0, "2x1", id="preemption")],
)
def test_a_disturbed_run_is_taken_up_again_by_itself(torchx, undisturbed, gate, sent, retries, nodes, request):
    """A rank is killed: a failure, which is retried. torchrun gets SIGTERM on a node of two: no failure, a restart."""
    out = request.node.callspec.id
    handle = torchx.detached(*job(out, STEPS, retries, gate, nodes))
    wait_for(lambda: steps_done(torchx.home / out) > 30)
    if sent is signal.SIGKILL:
        os.kill(rank_of(handle, 1), sent)
    else:
        os.kill(psutil.Process(rank_of(handle, 0)).ppid(), sent)
        wait_for(lambda: STOPS in torchx("log", handle).stdout)
    gate.open()
    status = torchx.wait_for_end(handle)
    assert (status["state"], status["msg"]) == ("SUCCEEDED", f"finished at step {STEPS}"), torchx("log", handle).stdout
    assert status["num_restarts"] == 1
    assert losses(torchx.home / out) == undisturbed
