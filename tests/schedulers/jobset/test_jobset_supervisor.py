"""The script that runs a replica in its container, in a shell of its own."""

import os
import subprocess

import pytest

from schedulers.jobset.pod import SUPERVISOR
from trainer.core.outcome import OUTCOME_VARIABLE, STOPPED, WRONG_INPUT


@pytest.fixture
def supervise(tmp_path):
    """Runs a shell script as a replica and returns how it ended."""
    (tmp_path / "outcome").touch()
    always = {OUTCOME_VARIABLE: str(tmp_path / "outcome"), "TORCHX_REPLICAS": "1", "HOSTNAME": "job-trainer-0-0"}

    def run(script, **environment):
        environment = os.environ | always | {"TORCHX_RANK0_HOST": "localhost"} | environment
        command = ["sh", "-c", SUPERVISOR, "trainer", "sh", "-c", script]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("echo finished at step 9 > outcome; exit 1", 0),
        ("echo stopped at step 5, saved there > outcome; exit 1", STOPPED),
        ("printf 'stopped at step 5' > outcome; exit 1", STOPPED),
        ("echo wrong input: a key > outcome; exit 1", WRONG_INPUT),
    ],
)
def test_the_outcome_decides_over_the_exit_code(supervise, script, code):
    assert supervise(script).returncode == code


def test_a_signal_reaches_the_replica_which_has_time_to_leave(supervise):
    script = (
        "trap 'sleep 0.3; echo stopped there > outcome; exit 1' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"
    )
    assert supervise(script).returncode == STOPPED


def test_replica_0_finds_itself_without_a_name(supervise):
    assert supervise("echo $TORCHX_RANK0_HOST", TORCHX_RANK0_HOST="job-trainer-0-0.job").stdout == "localhost\n"


def test_other_replicas_wait_until_replica_0_has_a_name(supervise, tmp_path):
    getent = tmp_path / "bin" / "getent"
    getent.parent.mkdir()
    getent.write_text('#!/bin/sh\necho "$2" >> asked; test $(wc -l < asked) = 3\n')
    getent.chmod(0o755)
    path, host = f"{getent.parent}:{os.environ['PATH']}", "job-trainer-0-0.job"
    done = supervise("echo $TORCHX_RANK0_HOST", PATH=path, TORCHX_RANK0_HOST=host, HOSTNAME="job-trainer-0-1")
    assert done.stdout == f"{host}\n"
    assert (tmp_path / "asked").read_text().split() == [host] * 3
