"""How far a job of `local_cwd` is, in `status` and `list`: written by the trainer's own file, without torch."""

import json
import os
import re
import signal
import sys

import pytest
from shells import SH, wait_for

REPORTS = """
import os, time
from trainer.core.progress import PROGRESS, TrainingProgress
PROGRESS.begin(TrainingProgress(step=0, last_step=2000, saved_step=0, time=time.time()), print)
for step in range(100, 2001, 100):
    now = time.time()
    PROGRESS.report(TrainingProgress(
        step=step, last_step=2000, loss=0.5, samples_per_second=1234.0, end=now + 3600, interval=1e3, time=now))
    PROGRESS.saved(step - 50)
    while not os.path.exists(f"{step}"): time.sleep(0.02)
"""

BEHIND = """
import time
from trainer.core.progress import PROGRESS, TrainingProgress
PROGRESS.begin(TrainingProgress(step=0, last_step=0, time=time.time()), print)
PROGRESS.behind("segment 07, 40 records behind", time.time() - 90)
time.sleep(600)
"""


@pytest.fixture
def job(torchx, tmp_path):
    """Starts a job that reports every hundred steps, and waits after each for a file of that name."""
    (tmp_path / "reports.py").write_text(REPORTS)

    def job(after: str = ":", *options: str) -> str:
        script = f"cd {tmp_path}; echo $$$$ > pid; {sys.executable} reports.py || {{ {after}; }}"
        return torchx.detached("utils.sh", *options, *SH[1:], script)

    return job


def reported(torchx, handle):
    file = torchx.record(handle) / "training.json"
    return json.loads(file.read_text()) if file.exists() else {}


def test_status_and_list_show_how_far_a_job_is_and_since_when_it_stands_still(torchx, tmp_path, job):
    handle = job()
    other = torchx.detached(*SH, f"until [ -e {tmp_path}/100 ]; do sleep 0.05; done")
    wait_for(lambda: reported(torchx, handle).get("saved_step"))
    status = torchx.status(handle)
    far = r"step 100/2,000, 1,234 samples/s, loss 0\.50000, ETA [\d:]+, saved step 50 \(\d+ \w+ ago\)"
    assert re.fullmatch(far, status["msg"])
    assert status["progress"] == reported(torchx, handle) | {"stalled": False}
    assert f"Msg: {status['msg'][:14]}" in torchx("status", handle).stdout
    listed = torchx("list").stdout.splitlines()
    assert listed[0].split()[-1] == "progress"
    assert [line for line in listed if re.fullmatch(rf"{handle} +sh +RUNNING +step 100/2,000, ETA [\d:]+", line)]
    assert [line for line in listed if re.fullmatch(rf"{other} +sh +RUNNING *", line)]

    pid = next(process["pid"] for process in torchx.progress(handle)["processes"])
    os.killpg(pid, signal.SIGSTOP)
    (tmp_path / "100").touch()
    age(torchx.record(handle) / "training.json", seconds=4000)
    status = torchx.status(handle)
    stands = r"step 100/2,000, no progress since (?:\S+ )?\d\d:\d\d \(1 h\)"
    assert re.fullmatch(rf"{stands}, loss 0\.50000, saved step 50 \(\d+ \w+ ago\)", status["msg"])
    assert (status["state"], status["progress"]["stalled"]) == ("RUNNING", True)
    assert re.search(rf"{handle} .*RUNNING +{stands}$", torchx("list").stdout, re.MULTILINE)

    os.killpg(pid, signal.SIGCONT)
    wait_for(lambda: reported(torchx, handle).get("saved_step") == 150)
    assert torchx.status(handle)["msg"].startswith("step 200/2,000, 1,234 samples/s, ")
    torchx("cancel", handle)
    ended = torchx.wait_for_end(handle)
    assert "progress" not in ended
    assert "step" not in ended["msg"]


def age(file, seconds):
    """Makes the last sign of life older."""
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"time": content["time"] - seconds}))


def test_a_job_that_starts_again_does_not_show_the_attempt_before(torchx, tmp_path, job):
    handle = job("exit 3", "--max_retries", "1")
    wait_for(lambda: reported(torchx, handle).get("saved_step"))
    (tmp_path / "reports.py").write_text("import time\nwhile True: time.sleep(0.02)")
    pid = int((tmp_path / "pid").read_text())
    os.killpg(pid, signal.SIGKILL)
    wait_for(lambda: torchx.progress(handle).get("restarts") == 1 and torchx.progress(handle)["state"] == "RUNNING")
    status = torchx.status(handle)
    assert (status["state"], status["num_restarts"], status["msg"]) == ("RUNNING", 1, "<NONE>")
    assert "progress" not in status


def test_status_and_list_show_how_far_a_job_without_steps_is_behind(torchx, tmp_path):
    (tmp_path / "behind.py").write_text(BEHIND)
    handle = torchx.detached("utils.sh", *SH[1:], f"exec {sys.executable} {tmp_path}/behind.py")
    wait_for(lambda: reported(torchx, handle).get("backlog"))
    status, behind = torchx.status(handle), "segment 07, 40 records behind, newest event 1 min ago"
    assert status["msg"] == behind
    assert status["progress"]["backlog"] == "segment 07, 40 records behind"
    assert re.search(rf"{handle} .*RUNNING +{behind}$", torchx("list").stdout, re.MULTILINE)
    torchx("cancel", handle)
