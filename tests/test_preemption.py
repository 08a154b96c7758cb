"""A job that is asked to stop saves, leaves, and goes on later as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import write_config
from jobs import config, losses, write_rows

from components._launch import SIGNALS
from trainer.preemption import SAME_REQUEST_SECONDS

STEPS = 400
QUIET = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def setting(rows, tmp_path_factory):
    """A configuration of many short steps, and the losses of a run of it that nobody disturbs, on 2 ranks."""
    folder = tmp_path_factory.mktemp("preemption")
    file = write_config(folder / "config.toml", config(rows, train__steps=STEPS))
    done = start(file, folder / "straight").wait(120)
    assert done == 0
    return file, losses(folder / "straight")


def start(file: Path, out: Path, *flags: str, ranks: int = 2, **environment: str) -> subprocess.Popen:
    launcher = f"-m torch.distributed.run --nproc-per-node {ranks} --signals-to-handle {SIGNALS}".split()
    command = [sys.executable, *(launcher if ranks else []), "-m", "trainer", "train", file, "--out", out, *flags]
    environment = os.environ | QUIET | {"TORCHX_OUTCOME_FILE": f"{out}-outcome"} | environment
    return subprocess.Popen(
        [str(word) for word in command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(condition, process: subprocess.Popen, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps_done(out: Path) -> int:
    return (out / "metrics.jsonl").read_text().count("\n") if (out / "metrics.jsonl").exists() else 0


def workers(agent: subprocess.Popen) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()]


def running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def committed(out: Path) -> list[int]:
    return sorted(int(file.parent.name.removeprefix("step-")) for file in out.glob("checkpoints/*/manifest.json"))


def outcome(out: Path) -> str:
    return Path(f"{out}-outcome").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_agent_costs_no_step(setting, tmp_path, number):
    file, straight = setting
    out = tmp_path / "out"
    job = start(file, out)
    wait_for(lambda: steps_done(out) >= 5, job)
    job.send_signal(number)
    said = job.communicate(timeout=60)[0]
    (saved,) = committed(out)
    assert 5 <= saved < STEPS
    assert job.returncode == 1  # torchrun's answer to every signal
    assert outcome(out) == f"stopped at step {saved}, saved {out}/checkpoints/step-{saved:09d}\n" in said
    assert json.loads((out / "run.json").read_text())["state"] == "stopped"

    again = start(file, out)
    assert f"going on after step {saved} " in again.communicate(timeout=120)[0]
    assert again.returncode == 0
    assert losses(out) == straight
    assert outcome(out) == f"finished at step {STEPS}\n"
    assert json.loads((out / "run.json").read_text())["state"] == "finished"


def test_one_rank_is_asked_and_all_leave(setting, tmp_path):
    out = tmp_path / "out"
    job = start(setting[0], out)
    wait_for(lambda: steps_done(out) >= 5, job)
    os.kill(workers(job)[1], signal.SIGTERM)
    job.communicate(timeout=60)
    assert outcome(out).startswith(f"stopped at step {committed(out)[-1]}, saved")


def test_alone_the_exit_code_says_try_again(setting, tmp_path):
    out = tmp_path / "out"
    job = start(setting[0], out, ranks=0)
    wait_for(lambda: steps_done(out) >= 5, job)
    job.send_signal(signal.SIGTERM)
    assert "SIGTERM: training stops after this step and saves" in job.communicate(timeout=60)[0]
    assert job.returncode == 75


def test_an_evaluation_is_given_up_and_made_up_for(rows, tmp_path):
    out = tmp_path / "out"
    many = write_rows(tmp_path / "many", [20_000])
    tree = config(rows, train__steps=4, data__validation=[str(many)], evaluate__every_steps=2)
    file = write_config(tmp_path / "config.toml", tree)
    job = start(file, out, "--evaluate.global-batch-size", "1", ranks=0)
    wait_for(lambda: committed(out) or steps_done(out) >= 2, job)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == 75
    assert committed(out) == [2]
    assert not (out / "evaluations.jsonl").exists()
    again = start(file, out, "--evaluate.global-batch-size", "10000", ranks=0)
    again.communicate(timeout=120)
    evaluations = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    assert [(line["step"], line["rows"]) for line in evaluations] == [(2, 20_000), (4, 20_000)]


def test_a_second_signal_ends_it_at_once_even_in_a_collective(setting, tmp_path):
    out = tmp_path / "out"
    job = start(setting[0], out)
    wait_for(lambda: steps_done(out) >= 5, job)
    first, second = workers(job)
    os.kill(second, signal.SIGSTOP)
    time.sleep(1)
    os.kill(first, signal.SIGTERM)
    time.sleep(SAME_REQUEST_SECONDS + 1)
    os.kill(first, signal.SIGTERM)
    wait_for(lambda: not running(first), job, seconds=10)
    os.kill(second, signal.SIGKILL)
    said = job.communicate(timeout=60)[0]
    assert "SIGTERM: training ends at once; it goes on from the last checkpoint" in said
    assert committed(out) == []
    assert not Path(f"{out}-outcome").exists()


def test_a_job_with_too_little_time_to_save_leaves_what_it_has(setting, tmp_path):
    out = tmp_path / "out"
    job = start(setting[0], out, "--checkpoint.every-steps", "3", "--checkpoint.grace-seconds", "0", ranks=0)
    wait_for(lambda: committed(out), job)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    saved = committed(out)[-1]
    assert saved % 3 == 0
    assert f", saved {out}/checkpoints/step-{saved:09d}\n" in outcome(out)
    assert job.returncode == 75
