"""How often a local job is started again, and after which wait."""

import os
import signal

import pytest
from shells import RUN, SH, wait_for

from schedulers.local.restarts import Restarts

STOPPED = "stopped at step {0}, saved runs/a/checkpoints/step-{0:09d}"
SAVED = "saved runs/a/checkpoints/step-{0:09d}"


def attempts(folder, *outcomes):
    """A script that leaves one outcome after the other, the last of them in all further attempts, and fails."""
    lines = " ".join(f"{number}) echo '{line}';;" for number, line in enumerate(outcomes[:-1], 1))
    count = f"$(wc -l < {folder}/attempts)"
    return f"""echo x >> {folder}/attempts
        case {count} in {lines} *) echo '{outcomes[-1]}';; esac > $TORCHX_OUTCOME_FILE
        exit 1"""


def restarts(rule, *outcomes):
    """The waits before the restarts after these outcomes, until one is refused."""
    waits = []
    for outcome in outcomes:
        if not rule.allowed(outcome):
            return waits
        rule.count(outcome)
        waits.append(rule.wait_seconds)
    return waits


def test_a_job_that_stops_and_gains_no_step_has_failed_after_the_bound(torchx, tmp_path):
    script = attempts(tmp_path, STOPPED.format(3))
    done = torchx(*RUN, "-cfg", "max_free_restarts=2", *SH, script)
    assert done.returncode == 1
    status = torchx.status(done.stdout.strip())
    assert (status["state"], status["num_restarts"]) == ("FAILED", 3)
    assert status["msg"] == (
        "not started again after max_free_restarts=2 restarts in a row that gained no step; "
        f"the last attempt {STOPPED.format(3)}"
    )
    assert (tmp_path / "attempts").read_text() == 4 * "x\n"


def test_a_job_that_gains_steps_is_started_again_at_once_and_without_bound(torchx, tmp_path):
    script = attempts(tmp_path, *(STOPPED.format(step) for step in (2, 3, 5)), "finished at step 5")
    done = torchx(*RUN, "-cfg", "max_free_restarts=0", *SH, script)
    assert done.returncode == 0, done.stderr
    assert torchx.status(done.stdout.strip())["num_restarts"] == 3
    assert f"{STOPPED.format(3)}; starting again, restart 2" in done.stderr


@pytest.mark.more("a detail")
def test_a_step_that_was_saved_is_passed_on_to_later_attempts(torchx, tmp_path):
    """The second attempt saves nothing."""
    script = f"echo saw $TORCHX_SAVED_STEP; {attempts(tmp_path, SAVED.format(7), '', 'finished at step 8')}"
    done = torchx(*RUN, "utils.sh", "--max_retries", "2", *SH[1:], script)
    assert done.returncode == 0
    log = torchx("log", "--regex", "^saw", done.stdout.strip()).stdout
    assert log.splitlines() == ["sh/0 saw", "sh/0 saw 7", "sh/0 saw 7"]


def test_a_job_that_waits_says_so_and_is_cancelled_at_once(torchx, tmp_path):
    handle = torchx.detached(*SH, attempts(tmp_path, "stopped before the first step"))
    message = "waits 4 seconds for restart 2: stopped before the first step"
    wait_for(lambda: torchx.progress(handle)["message"] == message)
    assert torchx.progress(handle)["state"] == "PENDING"
    os.kill(torchx.supervisor(handle), signal.SIGTERM)  # as `torchx cancel` does, which takes a second to start
    status = torchx.wait_for_end(handle)
    assert (status["state"], status["num_restarts"]) == ("CANCELLED", 1)
    assert (tmp_path / "attempts").read_text() == 2 * "x\n"
    assert "stopped before the first step; starting again in 4 seconds, restart 2" in torchx("log", handle).stdout


@pytest.mark.more("waits")
def test_log_of_a_job_that_waits_says_so_and_prints_what_there_is(torchx, tmp_path):
    handle = torchx.detached(*SH, f"echo hello; {attempts(tmp_path, 'stopped before the first step')}")
    wait_for(lambda: torchx.progress(handle)["message"].startswith("waits 16 seconds"))
    done = torchx("log", handle)
    assert " is PENDING: waits " in done.stderr.splitlines()[0]
    assert done.stdout.count("sh/0 hello\n") >= 2


def test_waits_double_up_to_a_minute_and_begin_anew_after_a_gain():
    rule = Restarts(max_retries=0, max_free=20)
    waits = restarts(rule, *[STOPPED.format(0)] * 8, STOPPED.format(7), *[STOPPED.format(7)] * 2)
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64, 0, 2, 4]


def test_a_gain_ends_the_row_of_free_restarts():
    rule = Restarts(max_retries=0, max_free=2)
    row = [STOPPED.format(1)] * 3
    assert len(restarts(rule, *row, *[STOPPED.format(2)] * 9)) == 6


@pytest.mark.parametrize("outcome", ["", SAVED.format(4)])
def test_a_failure_uses_up_a_retry_and_no_free_restart(outcome):
    rule = Restarts(max_retries=2, max_free=1)
    assert len(restarts(rule, outcome, outcome, outcome)) == 2
    assert rule.allowed("stopped at once")


def test_a_step_that_a_failed_attempt_saved_is_not_gained_again():
    rule = Restarts(max_retries=1, max_free=0)
    assert restarts(rule, SAVED.format(4), STOPPED.format(4)) == [0]


def test_a_bound_below_zero_is_one_line(torchx):
    done = torchx(*RUN, "-cfg", "max_free_restarts=-1", *SH, ":")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "torchx run: error: -cfg max_free_restarts=-1: must be 0 or more"
