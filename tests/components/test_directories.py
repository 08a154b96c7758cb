"""Directories in which no job can be submitted."""

import os
import subprocess

ECHO = ("--workspace", "", "utils.echo")


def test_nothing_is_submitted_to_slurm_whose_record_cannot_be_written(torchx, tmp_path):
    (tmp_path / "file").touch()
    done = torchx("run", "-s", "slurm", *ECHO, XDG_STATE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2
    folder = tmp_path / "file" / "torchx-recsys"
    assert done.stderr.splitlines()[-1].startswith(f"torchx run: error: cannot keep a record of the job in {folder}: ")
    assert not (tmp_path / "slurm-jobs").exists()


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    command = ["torchx", "run", "-s", "slurm", *ECHO]
    done = subprocess.run(command, cwd="/sys", env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert line.startswith("torchx run: error: /sys/slurm-jobs/")
    assert "the job directory cannot be written: " in line


def test_a_disk_without_space_is_one_line(tmp_path):
    script = 'ulimit -f 0; exec torchx "$@"'
    command = ["bash", "-c", script, "bash", "run", "-s", "local_cwd", *ECHO]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("[Errno 27] File too large; set XDG_STATE_HOME")
