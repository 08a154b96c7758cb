"""A job that is stuck or broken says where and why."""

import os
import re
import signal

import pytest
from command import write_config
from jobs import config, write_rows
from trainer_process import Training


@pytest.fixture
def file(rows, tmp_path):
    return write_config(tmp_path / "config.toml", config(rows, train__steps=1_000_000))


def test_ranks_that_are_stuck_say_where(file, tmp_path):
    job = Training(file, tmp_path / "out", "--train.stuck-seconds", "3").after_steps(5)
    _, second = job.workers()
    os.kill(second, signal.SIGSTOP)
    job.wait_until(lambda: "has been stuck" in job.said(), seconds=120)
    os.kill(second, signal.SIGCONT)
    before = job.steps()
    job.wait_until(lambda: job.steps() > before)  # it was only slow
    job.signal(signal.SIGTERM).end()
    said = re.search(r"rank 0 has been stuck for \d+ s in the work after step (\d+), in \w+ \(.*:\d+\):\n", job.said())
    assert said, job.said()[-3000:]
    assert 'loop.py", line' in job.said()


def test_the_first_error_counts(tmp_path):
    data = write_rows(tmp_path / "data", [256])
    tree = config(data, train__steps=50, data__lanes=2, data__shuffle=False)
    tree["data"]["sparse"]["s0"]["rows"] = 99  # one of the two ranks meets the one id that is too large first
    job = Training(write_config(tmp_path / "config.toml", tree), tmp_path / "out")
    said = job.end()
    assert job.code == 1
    assert re.search(r"^error: .*row group \d+, .*s0", said, re.MULTILINE), said
    assert "Connection closed by peer" not in said
    assert "InputError" in said  # torchrun's summary shows it too


def test_a_killed_rank_is_what_torchrun_names(file, tmp_path):
    job = Training(file, tmp_path / "out").after_steps(5)
    os.kill(job.workers()[1], signal.SIGKILL)
    said = job.end()
    assert "rank 0 lost the connection to another rank, whose error counts" in said
    assert "Signal 9 (SIGKILL)" in said
    assert "Connection closed by peer" not in said
