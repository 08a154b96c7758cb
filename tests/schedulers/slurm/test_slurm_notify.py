"""`-cfg notify` of `slurm`: one message for each end of a job, on a real Slurm, whatever is lost."""

import pytest
from mailbox_servers import mailbox
from shells import wait_for
from slurm_shell import Shell

pytestmark = [pytest.mark.slurm, pytest.mark.more("a training on Slurm stands for all, and messages of local jobs")]


@pytest.fixture
def shell(clusters, tmp_path):
    return Shell(clusters(True), tmp_path)


@pytest.fixture
def box(shell, tmp_path):
    with mailbox(tmp_path) as box:
        shell.env["APPRISE_CONFIG_PATH"] = str(tmp_path / "apprise.yml")
        yield box


def until(file):
    return f"until [ -e {file} ]; do sleep 0.1; done"


def check_what_was_told(shell, box, handle, state):
    wait_for(lambda: box.hooked)
    title, text = box.hooked[0]
    assert title == f"sh {state}"
    assert text.splitlines()[0] == handle
    assert text.splitlines()[-1] == f"torchx log {handle}"
    wait_for(lambda: shell.cluster.run("squeue", "--me", "-h") == "")
    assert len(box.hooked) == 1


def test_success_is_told_once_though_the_controller_was_away(shell, box, tmp_path):
    handle = shell.shell_job(until(tmp_path / "go"), cfg="notify=hook")
    shell.wait(handle, "RUNNING")
    with shell.cluster.controller_away():
        (tmp_path / "go").touch()
    check_what_was_told(shell, box, handle, "SUCCEEDED")


def test_a_failure_is_told_once(shell, box):
    handle = shell.shell_job("echo why >&2; exit 3", "--max_retries", "1", cfg="notify=hook")
    check_what_was_told(shell, box, handle, "FAILED")
    assert "first error: sh/0, its last line: why" in box.hooked[0][1]


def test_a_cancelled_job_in_the_queue_is_told_once(shell, box):
    handle = shell.shell_job("true", cfg="notify=hook,begin=now+1hour")
    shell.torchx("cancel", handle)
    check_what_was_told(shell, box, handle, "CANCELLED")


@pytest.mark.sample(0)  # Slurm takes a minute and a half
def test_a_lost_node_is_told_once(shell, box, tmp_path):
    handle = shell.shell_job(until(tmp_path / "go"), cfg="notify=hook,requeue=False")
    host = shell.wait(handle, "RUNNING")["roles"][0]["replicas"][0]["hostname"]
    shell.cluster.cut_power(host)
    shell.cluster.start_node(host)
    check_what_was_told(shell, box, handle, "FAILED")
