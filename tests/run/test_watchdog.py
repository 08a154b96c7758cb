"""A job that is stuck or broken reports where and why."""

import os
import re
import signal

import pytest
from command import write_config
from jobs import config, write_rows
from trainer_process import Training, is_running


@pytest.fixture
def file(rows, tmp_path):
    return write_config(tmp_path / "config.toml", config(rows, model__name="custom:unhurried", train__steps=1_000_000))


def test_stuck_ranks_print_their_stack(file, tmp_path):
    job = Training(file, tmp_path / "out", "--train.stuck-seconds", "3").after_steps(5)
    _, second = job.workers()
    os.kill(second, signal.SIGSTOP)
    stuck = re.compile(r"rank 0 has been stuck for \d+ s in the work after step (\d+), in \w+ \(.*:\d+\):\n")
    job.wait_until(lambda: stuck.search(job.output()))  # on a busy machine the start is slow, too
    os.kill(second, signal.SIGCONT)
    before = job.steps()
    job.wait_until(lambda: job.steps() > before)  # it was only slow
    job.signal(signal.SIGTERM).end()
    assert 'loop.py", line' in job.output()


@pytest.mark.more("waits")
def test_a_collective_that_a_rank_does_not_join_in_time_ends_the_job(file, tmp_path):
    """Also in TorchRec's groups of a node, in which the ranks wait here."""
    flags = ["--train.stuck-seconds", "2", "--train.collective-timeout-seconds", "8"]
    flags += ["--planner.sharding-types", "table_row_wise"]
    job = Training(file, tmp_path / "out", *flags).after_steps(5)
    first, second = job.workers()
    os.kill(second, signal.SIGSTOP)
    job.wait_until(lambda: not is_running(first))
    os.kill(second, signal.SIGKILL)
    output = job.end()
    assert job.code == 1
    assert "rank 0 has been stuck" in output
    assert "Timed out waiting 8000ms" in output


def test_only_the_first_error_is_reported(tmp_path):
    data = write_rows(tmp_path / "data", [256])
    tree = config(data, train__steps=50, data__lanes=2, data__shuffle=False)
    tree["data"]["sparse"]["s0"]["rows"] = 99  # one of the two ranks meets the one id that is too large first
    job = Training(write_config(tmp_path / "config.toml", tree), tmp_path / "out")
    output = job.end()
    assert job.code == 2
    assert re.search(r"^error: .*row group \d+, .*s0", output, re.MULTILINE), output
    assert not re.search(r"Error.*Connection closed by peer", output)  # Gloo's own warning may be there
    assert output.count("error: ") == 1


def test_a_killed_rank_is_what_torchrun_names(file, tmp_path):
    """Though another rank notices it first: torchrun is stopped until then, or it might end that rank before."""
    job = Training(file, tmp_path / "out").after_steps(5)
    second = job.workers()[1]
    job.signal(signal.SIGSTOP)
    os.kill(second, signal.SIGKILL)
    job.wait_until(lambda: "rank 0 lost the connection to another rank, whose error counts" in job.output())
    job.signal(signal.SIGCONT)
    output = job.end()
    assert "Signal 9 (SIGKILL)" in output, output
    assert "Connection closed by peer" not in output
