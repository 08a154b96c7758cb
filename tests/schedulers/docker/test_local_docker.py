"""`local_docker` with a real daemon: containers on a network of their own, which end well, badly, or not at all."""

import json
import os
import subprocess
import sys
import time

import pytest
from command import run_torchx
from docker_daemon import MOUNTS, docker, docker_daemon
from torchx.runner import get_runner

RUN = ("run", "-s", "local_docker", "--workspace", "")
SHELL = ("utils.sh", "--image", "base:1", "--mounts", MOUNTS)
# Replica 0 answers on a port until it is asked to end; the other asks it every 0.2 s, and fails with the first error.
TALK = """
import os, socket, time, urllib.request, http.server
name = os.environ["TORCHX_RANK0_HOST"]
if socket.gethostname() == name:
    http.server.HTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
while True:
    try:
        urllib.request.urlopen(f"http://{name}:8000/proc/version", timeout=2).read()
        print("heard", flush=True)
    except OSError as error:
        if os.path.exists("/out/heard"):
            raise SystemExit(f"lost {name}: {error}")
    else:
        open("/out/heard", "w").close()
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with docker_daemon(tmp_path_factory.mktemp("docker")) as daemon:
        yield daemon


@pytest.fixture
def torchx(daemon, tmp_path):
    def torchx(*words, code=0, **env):
        done = run_torchx(*words, cwd=tmp_path, HOME=str(tmp_path), **daemon | env)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return torchx


@pytest.fixture
def start(daemon, monkeypatch):
    """Submits a job and returns its handle; `torchx run` waits for jobs of this machine."""
    monkeypatch.setenv("DOCKER_HOST", daemon["DOCKER_HOST"])

    def start(*words):
        with get_runner() as runner:
            return runner.run_component(words[0], [*words[1:]], "local_docker")

    return start


def names(daemon, handle):
    """The containers of a job, by the number of the replica."""
    label = f"label=torchx.pytorch.org/app-id={handle.rpartition('/')[2]}"
    found = docker(daemon, "ps", "-a", "--filter", label, "--format", "{{.Names}}").stdout.decode().split()
    return {int(name.rpartition("-")[2]): name for name in found}


def status(torchx, handle, state=None):
    """The status of a job, once it has a state."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        answer = json.loads(torchx("status", "--json", handle).stdout)
        if state in (None, answer["state"]):
            return answer
        time.sleep(0.3)
    raise AssertionError(answer)


def test_a_job_that_fails_has_its_line(torchx):
    script = "echo begins; echo 'error: train.steps is -1: must be 1 or more' >&2; exit 3"
    done = torchx(*RUN, "--wait", "--log", *SHELL, "sh", "-c", script, code=1)
    last = done.stderr.splitlines()[-2:]
    assert last[0].endswith("the job has ended as FAILED: sh/0 ended with exit code 3"), done.stderr
    assert last[1].strip() == "first error: sh/0: its last line: error: train.steps is -1: must be 1 or more"
    handle = done.stdout.split()[0]
    said = torchx("status", handle).stdout
    assert "sh/0 ended with exit code 3" in said
    assert "train.steps is -1" in said


@pytest.mark.more("the smoke test has a failure's line")
def test_a_killed_container(torchx, start, daemon):
    handle = start(*SHELL, "sleep", "1000")
    docker(daemon, "kill", names(daemon, handle)[0])
    assert status(torchx, handle, "FAILED")["msg"] == "sh/0 ended with exit code 137 (SIGKILL)"


@pytest.mark.more("the smoke test has a failure's line")
def test_too_little_memory(torchx, start):
    handle = start(*SHELL, "--memMB", "64", "python3", "-c", "'x' * (1 << 30)")
    assert "SIGKILL), out of its 64 MB of memory" in status(torchx, handle, "FAILED")["msg"]


@pytest.mark.more("the smoke test has a failure's line")
def test_a_partition_ends_the_job_with_the_error_of_who_saw_it(torchx, start, daemon):
    handle = start(*SHELL, "--num_replicas", "2", "python3", "-c", TALK)
    first, second = names(daemon, handle)[0], names(daemon, handle)[1]
    while b"heard" not in docker(daemon, "logs", second).stdout:
        assert status(torchx, handle)["state"] == "RUNNING"
        time.sleep(0.3)
    docker(daemon, "network", "disconnect", "torchx", first)
    while docker(daemon, "inspect", "-f", "{{.State.Running}}", second).stdout.strip() == b"true":
        time.sleep(0.3)
    docker(daemon, "kill", first)
    said = torchx("status", handle).stdout
    assert "sh/1 ended with exit code 1" in said
    assert f"lost {first}: " in said


@pytest.mark.more("the smoke test has a failure's line")
def test_a_place_where_the_user_may_not_write(torchx, start):
    handle = start(*SHELL, "sh", "-c", "echo x > /etc/x")
    assert "Read-only file system" in json.dumps(status(torchx, handle, "FAILED"))


@pytest.mark.more("test_containers.py has a daemon that is not there")
@pytest.mark.parametrize(
    ("image", "line"),
    [
        ("empty:1", "--image empty:1: cannot be started: "),
        ("none:1", "--image none:1: this machine's Docker does not have it, and cannot pull it: "),
    ],
)
def test_an_image_that_cannot_start_is_one_line_and_leaves_nothing(torchx, daemon, image, line):
    before = docker(daemon, "ps", "-aq").stdout
    done = torchx(*RUN, "utils.sh", "--image", image, "--num_replicas", "2", "true", code=2)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"torchx run: error: {line}")
    assert image != "empty:1" or "executable file not found" in last
    assert docker(daemon, "ps", "-aq").stdout == before


@pytest.mark.more("test_containers.py has a daemon that is not there")
def test_a_user_without_rights_to_the_daemon_is_one_line(daemon, tmp_path):
    words = ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-m", "torchx.cli.main"]
    done = subprocess.run(
        [*words, "list", "-s", "local_docker"], cwd="/", env=os.environ | daemon, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "Permission denied" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("torchx list: error: Docker: ")


@pytest.mark.more("the schedulers' trainings on one host show what the trainer does")
def test_two_containers_train_movielens(torchx, tmp_path, daemon):
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    made = run_torchx("run", "-s", "local_cwd", "data.movielens", "--out", str(data), cwd=tmp_path, HOME=str(tmp_path))
    assert made.returncode == 0, made.stderr
    mounts = f"{MOUNTS},type=bind,src={data},dst=/data,readonly,type=bind,src={out},dst=/out"
    keys = (
        "--train.steps",
        "20",
        "--data.train",
        "/data/train/*.parquet",
        "--data.validation",
        "/data/validation/*.parquet",
    )
    done = torchx(
        *(
            *RUN,
            "--wait",
            "--log",
            "dlrm.multi_node",
            "-j",
            "2x1",
            "--cpu",
            "1",
            "--memMB",
            "4000",
            "--image",
            "base:1",
        ),
        *(
            "--mounts",
            mounts,
            "--env",
            f"PATH={os.environ['PATH']},HOME=/out",
            "--config",
            "movielens",
            "--out",
            "/out/run",
        ),
        *("--", *keys, "--data.test", "/data/test/*.parquet"),
    )
    assert json.loads((out / "run/run.json").read_text())["world_size"] == 2
    assert json.loads((out / "run/run.json").read_text())["state"] == "finished"
    handle = done.stdout.split()[0]
    assert handle in torchx("list", "-s", "local_docker").stdout
