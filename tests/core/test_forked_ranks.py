"""Ranks that are forked from one process behave as programs that torchrun has started."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from command import write_config
from forked import run_forked
from jobs import config
from trainer_process import Training, committed, ranks_of

pytestmark = pytest.mark.more("test_preemption.py and test_watchdog.py signal and kill ranks")


@pytest.fixture
def job(rows, tmp_path):
    changes = {"train__steps": 1000, "report__interval_steps": 1}
    job = Training(write_config(tmp_path / "config.toml", config(rows, **changes)), tmp_path / "out").after_steps(3)
    yield job
    if job.process.poll() is None:
        job.kill()


def family(job: Training) -> list[psutil.Process]:
    return psutil.Process(job.process.pid).children()


def test_they_are_children_of_torchrun_by_name(job):
    assert sorted(process.name() for process in family(job)) == ["rank 0", "rank 1", "rank template"]
    assert len({os.getsid(process.pid) for process in family(job)}) == 3


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_all_processes_of_a_job_lets_ranks_save(job, number):
    """As cgroups and containers send it: nobody else is ended by it."""
    processes = family(job)
    for process in [*processes, psutil.Process(job.process.pid)]:
        process.send_signal(number)
    said = job.end()
    assert job.code == 1
    assert f"saved {job.out}" in job.outcome(), said
    assert committed(job.out)
    psutil.wait_procs(processes, 30)
    assert not [process for process in processes if process.is_running()]


def test_the_signal_that_ended_a_rank_is_reported(job):
    os.kill(ranks_of(job.process.pid)[1].pid, signal.SIGKILL)
    assert "Signal 9 (SIGKILL) received by PID" in job.end()
    assert job.code == 1


def test_the_template_ends_with_a_killed_torchrun(job):
    template = next(process for process in family(job) if process.name() == "rank template")
    job.process.kill()
    assert psutil.wait_procs([template], 30)[0] or template.status() == psutil.STATUS_ZOMBIE


def test_what_is_wrong_before_the_trainer_is_named_is_torchruns_to_say():
    help = subprocess.run([sys.executable, "-m", "trainer.launch", "--help"], capture_output=True, text=True)
    assert (help.returncode, help.stderr) == (0, "")
    assert "--nproc-per-node" in help.stdout


def start_rank_beside_a_slow_exit() -> None:
    """Starts a rank whose first parent takes long to end, and exits with the rank's code."""
    from trainer import forked_ranks
    from trainer.run.preemption import _follow_parent

    leave = os._exit

    def leave_late(code: int) -> None:
        time.sleep(0.5)
        leave(code)

    def run(words: list[str]) -> None:
        _follow_parent()
        time.sleep(1)
        leave(0)

    vars(forked_ranks)["run"] = run
    os._exit = leave_late
    rank = forked_ranks.RankTemplate().start((), dict(os.environ) | {"RANK": "0"}, [None, None])
    leave(abs(rank.wait(60)))


def test_a_rank_outlives_the_process_that_made_it(tmp_path):
    run_forked(start_rank_beside_a_slow_exit, folder=tmp_path)
