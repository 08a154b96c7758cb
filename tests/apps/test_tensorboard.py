"""`python -m trainer tensorboard`: what it refuses, and under which names it shows runs."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest
from command import run_trainer
from object_store import object_store
from ports import free_port
from torch.utils.tensorboard import SummaryWriter


@pytest.mark.parametrize("place", ["nowhere", "file", "memory://nowhere"])
def test_what_is_no_directory_is_refused(tmp_path, place):
    (tmp_path / "file").touch()
    url = place if "://" in place else tmp_path / place
    done = run_trainer("tensorboard", "--logdir", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: --logdir is '{url}', which is no directory; ")
    assert done.stderr.count("\n") == 1


def test_a_prefix_of_an_object_store_without_objects_is_refused():
    with object_store() as store:
        store.fs.mkdir("bucket")
        done = run_trainer("tensorboard", "--logdir", "s3://bucket/nowhere", **store.environment)
    assert done.returncode == 2
    assert "--logdir is 's3://bucket/nowhere', which is no directory" in done.stderr


@contextmanager
def served(folder, logdir):
    """Serves a directory as TensorBoard; yields what reads its JSON, and what it has printed."""
    port = free_port()
    words = ["tensorboard", "--logdir", logdir, "--port", str(port), "--", "--reload_interval", "1"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with (folder / "output").open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "trainer", *words], cwd=folder, stdout=output, stderr=output, env=environment
        )
    try:
        yield lambda path: json.load(urllib.request.urlopen(f"http://localhost:{port}/data/{path}"))
    finally:
        server.terminate()
        server.wait(60)


def until(ready):
    for _ in range(600):
        try:
            if found := ready():
                return found
        except OSError:  # it does not listen yet
            pass
        time.sleep(0.1)
    raise AssertionError("nothing came")


def write_events(run):
    with SummaryWriter(str(run / "tensorboard")) as board:
        board.add_scalar("loss/train", 0.5, 1)


def test_a_run_that_has_written_nothing_is_waited_for_and_has_its_own_name(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "config.toml").touch()
    with served(tmp_path, "first/") as read:
        until(lambda: read("environment"))
        assert read("runs") == []
        write_events(tmp_path / "first")
        assert until(lambda: read("runs")) == ["first/tensorboard"]
    said = (tmp_path / "output").read_text()
    assert said.splitlines()[0] == "'first/' holds no events yet; the page shows them once a run there has written some"


def test_runs_of_a_directory_have_names(tmp_path):
    for name in ("first", "second"):
        write_events(tmp_path / "runs" / name)
        (tmp_path / "runs" / name / "config.toml").touch()
    with served(tmp_path, "runs") as read:
        assert until(lambda: read("runs")) == ["first/tensorboard", "second/tensorboard"]
    assert "no events yet" not in (tmp_path / "output").read_text()
