"""The commands for submitted jobs."""

import os
import subprocess

import pytest


@pytest.mark.parametrize("command", ["cancel", "delete", "log"])
def test_a_job_that_is_not_there_is_one_line_and_exit_code_1(torchx, command):
    done = torchx(command, "local_cwd://torchx/sh-nowhere")
    assert done.returncode == 1
    assert done.stderr == f"torchx {command}: error: no such job: local_cwd://torchx/sh-nowhere\n"


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        ("sh-1", "sh-1 is not of the form: <scheduler_backend>://<session_name>/<app_id>"),
        (
            "slrum://torchx/1",
            "Scheduler backend: slrum does not exist; there are jobset, kubernetes, local_cwd, local_docker, slurm",
        ),
    ],
)
def test_a_wrong_handle_is_one_line_and_exit_code_2(torchx, handle, message):
    done = torchx("status", handle)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"torchx status: error: {message}")


@pytest.mark.parametrize("option", ["no_such_option=1", "detach=maybe"])
def test_a_wrong_option_of_list_is_one_line(torchx, option):
    done = torchx("list", "-s", "local_cwd", "-cfg", option)
    assert done.returncode == 2
    assert done.stderr.startswith(f"torchx list: error: -cfg {option}: must be KEY=VALUE,...")


def test_a_list_that_nobody_reads_to_its_end_is_silent(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(["torchx", "list"], cwd=tmp_path, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")
