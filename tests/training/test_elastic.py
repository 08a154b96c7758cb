"""An elastic job loses a node, resumes without it, and takes it in again."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from command import write_config
from forked import QUIET
from jobs import config, losses
from torchx.specs import macros
from trainer_process import Training, committed, ranks_of

from components import dlrm

pytestmark = pytest.mark.more("waits until torchrun misses nodes, twice")


@pytest.fixture
def start_node():
    """Starts a node of a job; none outlives the test."""
    nodes = []

    def start_node(app, log: Path) -> subprocess.Popen:
        values = macros.Values(img_root="", app_id=log.parent.name, replica_id="0", rank0_env="RANK0_HOST")
        role = values.apply(app.roles[0])
        node = subprocess.Popen(
            [role.entrypoint, *role.args],
            env=os.environ | role.env | QUIET | {"RANK0_HOST": "localhost"},
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        nodes.append(node)
        return node

    yield start_node
    for node in nodes:
        if node.poll() is None:
            cut_power(node)


def cut_power(node: subprocess.Popen) -> None:
    os.kill(node.pid, signal.SIGSTOP)  # so that it ends no rank meanwhile
    for rank in ranks_of(node.pid):
        rank.kill()
    os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def listens(node: subprocess.Popen) -> bool:
    agent = psutil.Process(node.pid)
    with suppress(psutil.NoSuchProcess):  # as imports start and end processes
        processes = agent, *agent.children(recursive=True)
        connections = [each for process in processes for each in process.net_connections()]
        return any(each.status == psutil.CONN_LISTEN for each in connections)
    return False


def wait_until(condition: Callable[[], object], *logs: Path) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "".join(log.read_text()[-3000:] for log in logs)
        time.sleep(0.1)


def world_size(out: Path) -> int:
    try:
        return json.loads((out / "run.json").read_text())["world_size"]
    except (FileNotFoundError, KeyError):
        return 0


def test_a_lost_node_and_its_return_lose_no_step(rows, tmp_path, start_node):
    out, first_log, second_log = tmp_path / "out", tmp_path / "first.log", tmp_path / "second.log"
    tree = config(rows, model__name="custom:unhurried", train__steps=1_000_000, checkpoint__every_steps=20)
    file = write_config(tmp_path / "config.toml", tree)
    app = dlrm.multi_node(config=str(file), out=str(out), j="1:2x1", cpu=1)

    def resumes_with(ranks: int) -> None:
        wait_until(lambda: world_size(out) == ranks, first_log, second_log)
        before = max(committed(out), default=0)
        wait_until(lambda: max(committed(out), default=0) > before, first_log, second_log)

    first = start_node(app, first_log)
    # The node that comes first is where all meet, which is the one that cannot be spared.
    wait_until(lambda: listens(first), first_log)
    second = start_node(app, second_log)
    resumes_with(2)
    cut_power(second)
    resumes_with(1)
    second = start_node(app, second_log)
    resumes_with(2)
    first.send_signal(signal.SIGTERM)
    first.wait(600)
    cut_power(second)

    last = committed(out)[-1]
    baseline = Training(file, tmp_path / "baseline", "--train.steps", str(last), "--model.name", "dlrm", ranks=0)
    assert baseline.end(600)
    np.testing.assert_allclose(losses(out)[:last], losses(tmp_path / "baseline"), rtol=1e-5, atol=1e-7)
