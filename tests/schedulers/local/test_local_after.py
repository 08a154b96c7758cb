"""`-cfg after` and `after_any` of `local_cwd`: jobs that wait for jobs, in any shell."""

import os
import re
import signal

import pytest
from shells import RUN, SH, handle_of, wait_for, waiting

pytestmark = pytest.mark.more("steps of test_local_pipeline.py wait for each other")


def message(torchx, handle):
    return torchx.progress(handle)["message"]


def is_told(torchx, handle, text):
    return lambda: text in message(torchx, handle)


def test_a_job_starts_after_another_has_succeeded(torchx, tmp_path):
    go, report = tmp_path / "go", "step 400/2,000  loss 0.5"
    first = torchx.detached(*SH, waiting(go, report))
    second = torchx.detached(*SH, f"test -e {go} && echo then", cfg=f",after={first}")
    wait_for(is_told(torchx, second, "step"))
    status = torchx.status(second)
    assert (status["state"], status["msg"]) == ("PENDING", f"waits for {first} (RUNNING, step 400/2,000)")
    assert torchx.status(first)["msg"] == "step 400/2,000"
    listed = torchx("list").stdout.splitlines()
    assert re.fullmatch(r"APP HANDLE +APP NAME +APP STATUS +waits", listed[0].strip())
    assert [line for line in listed if re.search(rf"PENDING +waits for {first} \(RUNNING, step 400/2,000\)$", line)]
    go.touch()
    assert torchx.wait_for_end(second)["state"] == "SUCCEEDED"
    assert torchx("log", "--streams", "stdout", f"{second}/sh/0").stdout == "sh/0 then\n"
    said = torchx("log", "--streams", "stderr", f"{second}/sh/0").stdout
    assert said == f"sh/0 torchx: waits for {first} (RUNNING)\n" or "step 400/2,000" in said


def test_it_waits_for_a_job_that_starts_again(torchx, tmp_path):
    go = tmp_path / "go"
    held = f"test -e {tmp_path}/tried && {{ {waiting(go, end='exit 0;')} }}; touch {tmp_path}/tried; exit 3"
    first = torchx.detached("utils.sh", "--max_retries", "1", *SH[1:], held)
    second = torchx.detached(*SH, ":", cfg=f",after={first}")
    wait_for(lambda: torchx.progress(first)["restarts"] == 1)
    assert torchx.progress(second)["state"] == "PENDING"
    go.touch()
    assert torchx.wait_for_end(second)["state"] == "SUCCEEDED"


@pytest.mark.few(1, "one end stands for all")
@pytest.mark.parametrize("end", ["failed", "cancelled", "lost its supervisor", "is gone"])
def test_it_does_not_start_after_one_that_did_not_succeed(torchx, tmp_path, end):
    go = tmp_path / "go"
    first = torchx.detached(*SH, waiting(go, end="exit 3"))
    second = torchx.detached(*SH, f"touch {tmp_path}/started", cfg=f",after={first}")
    third = torchx.detached(*SH, ":", cfg=f",after={second}")
    either_way = torchx.detached(*SH, ":", cfg=f",after_any={first}")
    wait_for(is_told(torchx, third, "waits for"))
    if end == "failed":
        go.touch()
    elif end == "lost its supervisor":
        os.kill(torchx.supervisor(first), signal.SIGKILL)
    else:
        torchx({"cancelled": "cancel", "is gone": "delete"}[end], first)
    found = "ended as CANCELLED" if end == "cancelled" else "is gone" if end == "is gone" else "ended as FAILED"
    status = torchx.wait_for_end(second)
    assert (status["state"], status["msg"]) == ("CANCELLED", f"not started: {first} {found}")
    assert torchx.wait_for_end(third)["msg"] == f"not started: {second} ended as CANCELLED"
    assert torchx.wait_for_end(either_way)["state"] == "SUCCEEDED"
    assert not (tmp_path / "started").exists()


def test_a_job_that_waits_can_be_cancelled(torchx, tmp_path):
    first = torchx.detached(*SH, waiting(tmp_path / "go"))
    second = torchx.detached(*SH, ":", cfg=f",after={first}")
    torchx("cancel", second)
    status = torchx.wait_for_end(second)
    assert (status["state"], status["msg"]) == ("CANCELLED", "cancelled before it started")
    assert torchx.status(first)["state"] == "RUNNING"


def test_a_shell_shows_what_its_job_waits_for(torchx, tmp_path):
    go = tmp_path / "go"
    first = torchx.detached(*SH, waiting(go))
    shell = torchx.open(*RUN, "-cfg", f"after={first}", *SH, "echo then")
    second = handle_of(shell)
    wait_for(is_told(torchx, second, "waits for"))
    go.touch()
    _, said = shell.communicate(timeout=600)
    assert shell.returncode == 0
    lines = [line for line in said.splitlines() if line.startswith("sh/0")]
    assert lines == [f"sh/0 torchx: waits for {first} (RUNNING)", "sh/0 then"]


@pytest.mark.more("a detail")
def test_several_jobs_that_have_ended_already(torchx):
    good, bad = (torchx(*RUN, *SH, f"exit {code}").stdout.strip() for code in (0, 3))
    done = torchx(*RUN, "-cfg", f"after={good},after_any={good},{bad}", *SH, "echo then")
    assert done.returncode == 0, done.stderr
    assert "waits for" not in done.stderr


def test_what_cannot_be_waited_for_is_refused(torchx):
    bad = torchx(*RUN, *SH, "exit 3").stdout.strip()
    before = torchx("list", "-s", "local_cwd").stdout
    for cfg, message in {
        f"after={bad}": "this job has ended as FAILED; nothing was submitted: run it again, or use after_any",
        "after_any=local_cwd://torchx/sh-nowhere": "no such job; nothing was submitted",
        "after=slurm://torchx/12": "must be the handle of a job of this scheduler, local_cwd://SESSION/ID, as",
        f"after={bad}/sh/0": "must be the handle of a job of this scheduler, local_cwd://SESSION/ID, as",
    }.items():
        done = torchx(*RUN, "-cfg", cfg, *SH, ":")
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"torchx run: error: -cfg {cfg}: {message}")
        assert "Traceback" not in done.stderr
    assert torchx("list", "-s", "local_cwd").stdout == before
