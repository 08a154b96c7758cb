"""`-cfg notify` of `local_cwd`: one message for each end of a job, whatever has been killed."""

import os
import re
import signal
import sys

import pytest
from mailbox_servers import mailbox
from shells import RUN, SH, wait_for, waiting

from schedulers.errors import SchedulerError
from schedulers.notify import check_tags


@pytest.fixture
def box(torchx):
    with mailbox(torchx.home) as box:
        torchx.environment["APPRISE_CONFIG_PATH"] = str(torchx.home / "apprise.yml")
        yield box


def notifiers(torchx):
    """The jobs that tell, by their state."""
    return dict(re.findall(r"^(local_cwd://torchx/notify-\S+) +notify +(\w+)", torchx("list").stdout, re.MULTILINE))


def told(torchx, box, count=1):
    """Waits until all jobs that tell have ended, and returns what the webhook got."""
    wait_for(lambda: [*notifiers(torchx).values()].count("SUCCEEDED") == count)
    return box.hooked


@pytest.mark.few(1, "one end stands for all")
@pytest.mark.parametrize("end", ["succeeds", "fails", "is cancelled", "is killed", "loses its supervisor"])
def test_each_end_is_told_once(torchx, box, tmp_path, end):
    go = tmp_path / "go"
    handle = torchx.detached(*SH, waiting(go, end="exit 3" if end == "fails" else ":"), cfg=",notify=hook")
    wait_for(lambda: torchx.progress(handle)["state"] == "RUNNING")
    wait_for(lambda: (tmp_path / "go.pid").exists())
    if end == "is cancelled":
        torchx("cancel", handle)
    elif end == "is killed":
        os.kill(int((tmp_path / "go.pid").read_text()), signal.SIGKILL)
    elif end == "loses its supervisor":
        os.kill(torchx.supervisor(handle), signal.SIGKILL)
    else:
        go.touch()
    ((title, text),) = told(torchx, box)
    state = {"succeeds": "SUCCEEDED", "is cancelled": "CANCELLED"}.get(end, "FAILED")
    assert title == f"sh {state}"
    status = torchx.status(handle)
    assert text.splitlines()[0] == handle
    assert (status["state"], status["msg"] in text or status["msg"] == "<NONE>") == (state, True)
    assert text.splitlines()[-1] == f"torchx log {handle}"
    records = [file for file in torchx.state.rglob("*") if file.is_file()]
    assert [file for file in records if "hush" in file.read_text(errors="replace")] == []  # the webhook's password


def test_mail_has_the_first_error_and_no_secret(torchx, box):
    url = "s3://key:hush@bucket/rows"
    done = torchx(*RUN, "-cfg", "notify=mail", *SH, f"echo cannot read {url} >&2; exit 3")
    assert done.returncode == 1
    told(torchx, box)
    (mail,) = box.mailed
    assert "Subject: sh FAILED" in mail
    assert "first error: sh/0, its last line: cannot read s3://" in mail
    assert "hush" not in mail


@pytest.mark.more("waits")
def test_a_server_that_does_not_answer_delays_only_the_message(torchx, box):
    assert torchx(*RUN, "-cfg", "notify=dead", *SH, ":").returncode == 0
    wait_for(lambda: [*notifiers(torchx).values()] == ["FAILED"])
    (notifier,) = notifiers(torchx)
    assert "could not tell dead: sh SUCCEEDED" in torchx("log", notifier).stdout


def test_a_tag_that_is_not_there_is_refused(torchx, box):
    before = torchx("list").stdout
    done = torchx(*RUN, "-cfg", "notify=nobody", *SH, ":")
    assert done.returncode == 2
    file = torchx.home / "apprise.yml"
    message = f"-cfg notify=nobody: no such tag in the configuration of Apprise ({file})"
    assert done.stderr.splitlines()[-1] == f"torchx run: error: {message}"
    done = torchx(*RUN, "-cfg", "notify=hook", *SH, ":", APPRISE_CONFIG_PATH="")
    assert "no such tag in the configuration of Apprise (there is none; ~/.config/apprise.yml is one)" in done.stderr
    assert torchx("list").stdout == before


def test_a_missing_apprise_is_said_before_anything_is_submitted(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SchedulerError, match=r"-cfg notify needs Apprise: pip install 'torchx-recsys\[notify\]'"):
        check_tags(["me"])
    check_tags([])
