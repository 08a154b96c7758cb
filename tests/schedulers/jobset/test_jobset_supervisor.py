"""The script that runs a replica in its container, in a shell of its own."""

import os
import subprocess

import pytest

from schedulers.jobset.options import JobSetOpts
from schedulers.jobset.restarts import GIVEN_UP, MOST_RESTARTS, supervisor
from trainer.core.outcome import OUTCOME_VARIABLE, STOPPED, WRONG_INPUT

ELSEWHERE = {"TORCHX_RANK0_HOST": "job-trainer-0-0.job", "HOSTNAME": "job-trainer-0-1"}


@pytest.fixture
def start(tmp_path):
    """Starts a shell script as a replica; the moment before the supervisor's line `prolong` can be made longer."""
    (tmp_path / "outcome").touch()
    always = {
        OUTCOME_VARIABLE: str(tmp_path / "outcome"),
        "TORCHX_REPLICAS": "1",
        "TORCHX_RESTARTS": "0",
        "TORCHX_RANK0_HOST": "localhost",
        "HOSTNAME": "job-trainer-0-0",
    }

    def run(script, max_retries=0, options=None, prolong="", **environment):
        supervisor_script = supervisor(JobSetOpts(**options or {}), max_retries)
        if prolong:
            assert supervisor_script.count(prolong) == 1
            supervisor_script = supervisor_script.replace(prolong, f"sleep 0.5\n{prolong}")
        command = ["sh", "-c", supervisor_script, "trainer", "sh", "-c", script]
        environment = os.environ | always | environment
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)

    return run


@pytest.fixture
def supervise(start):
    """Runs a shell script as a replica and returns how it ended."""

    def run(*arguments, **environment):
        process = start(*arguments, **environment)
        printed, _ = process.communicate(timeout=600)
        return subprocess.CompletedProcess(process.args, process.returncode, printed)

    return run


@pytest.fixture
def no_host(tmp_path):
    """A PATH on which no host has an address; those who ask are noted in the file `asked`."""
    getent = tmp_path / "bin" / "getent"
    getent.parent.mkdir()
    getent.write_text('#!/bin/sh\necho "$2" >> asked; test $(wc -l < asked) = "$ANSWERED"\n')
    getent.chmod(0o755)
    return f"{getent.parent}:{os.environ['PATH']}"


@pytest.mark.few(3, "three stand for all")
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        *((f"exit {code}", 1) for code in (WRONG_INPUT, STOPPED, GIVEN_UP)),
        ("echo finished at step 9 > outcome; exit 1", 0),
        ("echo stopped at step 5, saved there > outcome; exit 1", STOPPED),
        ("printf 'stopped at step 5' > outcome; exit 1", STOPPED),
        ("echo wrong input: a key > outcome; exit 1", WRONG_INPUT),
    ],
)
def test_the_outcome_decides_over_the_exit_code(supervise, script, code):
    assert supervise(script).returncode == code


def test_a_checkpoint_on_the_way_does_not_hide_the_last_words_of_a_failure(supervise, tmp_path):
    """Kubernetes shows the end of the log only where the file for the termination message is empty."""
    assert supervise("echo saved s3://run/checkpoints/step-000000005 > outcome; exit 3").returncode == 3
    assert (tmp_path / "outcome").read_text() == ""


def test_a_signal_reaches_the_replica_which_has_time_to_leave(supervise):
    script = (
        "trap 'sleep 0.3; echo stopped there > outcome; exit 1' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"
    )
    assert supervise(script).returncode == STOPPED


def test_replica_0_finds_itself_without_a_name(supervise):
    assert supervise("echo $TORCHX_RANK0_HOST", TORCHX_RANK0_HOST="job-trainer-0-0.job").stdout == "localhost\n"


def test_other_replicas_say_that_they_wait_until_replica_0_has_a_name(supervise, no_host, tmp_path):
    done = supervise("echo $TORCHX_RANK0_HOST", PATH=no_host, ANSWERED="3", **ELSEWHERE)
    host = ELSEWHERE["TORCHX_RANK0_HOST"]
    assert done.stdout == f"[torchx] waits until replica 0 runs: there is no host {host} yet\n{host}\n"
    assert (tmp_path / "asked").read_text().split() == [host] * 3


def test_a_replica_that_waited_long_enough_for_replica_0_fails_with_a_line(supervise, no_host, tmp_path):
    done = supervise("touch began", 0, {"rank0_wait_seconds": 1}, PATH=no_host, ANSWERED="-1", **ELSEWHERE)
    line = "replica 0 did not start within 1 seconds: there is no host job-trainer-0-0.job\n"
    assert (done.returncode, (tmp_path / "outcome").read_text()) == (1, line)
    assert line in done.stdout
    assert not (tmp_path / "began").exists()


# dash loses a signal that comes while it starts a program, so the sleep has to start in the background.
LEAVES = "trap 'exit 1' TERM; kill -TERM $PPID; sleep 60 > /dev/null & wait"
STOPS = "echo stopped at step 5, %s > outcome; exit 1"
BOUND = {"max_free_restarts": 2}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("restarts", "script", "code"),
    [
        (2, STOPS % "nothing saved", STOPPED),
        (3, STOPS % "nothing saved", GIVEN_UP),
        (3, STOPS % "saved s3://run/checkpoints/step-000000005", STOPPED),
        (2, LEAVES, 1),
        (3, LEAVES, GIVEN_UP),
        (3, f"echo saved s3://run/checkpoints/step-000000005 > outcome; {LEAVES}", 1),
        (3, "exit 3", 3),
    ],
)
def test_once_free_restarts_are_used_up_each_attempt_has_to_save(supervise, tmp_path, restarts, script, code):
    done = supervise(script, 1, BOUND, TORCHX_RESTARTS=str(restarts))
    assert done.returncode == code
    said = "saved nothing, and max_free_restarts=2 and max_retries=1 are used up; last: "
    assert (said in (tmp_path / "outcome").read_text()) == (code == GIVEN_UP)


def test_a_signal_in_the_moment_that_a_replica_starts_reaches_it(start):
    replica = start(LEAVES, prolong="child=$!")
    assert replica.wait(timeout=600) == 1


def test_a_job_has_a_last_restart_whatever_it_gained(supervise, tmp_path):
    assert supervise("touch began", TORCHX_RESTARTS=str(MOST_RESTARTS)).returncode == GIVEN_UP
    assert f"gave up after restart {MOST_RESTARTS}" in (tmp_path / "outcome").read_text()
    assert not (tmp_path / "began").exists()


@pytest.mark.more("waits")
def test_restarts_back_off_and_a_signal_ends_the_pause(start, tmp_path):
    replica = start("touch began", TORCHX_RESTARTS="6")
    assert replica.stdout.readline() == "[torchx] restart 6 begins in 32 s\n"
    replica.terminate()
    assert replica.wait() == 143
    assert not (tmp_path / "began").exists()
    replica = start("touch began", TORCHX_RESTARTS="9")
    assert replica.stdout.readline() == "[torchx] restart 9 begins in 60 s\n"
    replica.terminate()
