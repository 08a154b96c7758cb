"""Pipelines on the stand-in for a Kubernetes cluster."""

import json
import os
import random
import signal
import subprocess
import time

import pytest
from pipelines_of_shell import done, held, submissions, submitted, table, until_submitted, verbs, write_pipeline
from shells import wait_for

from schedulers.jobset import after
from torchx_recsys.pipelines import actions

pytestmark = pytest.mark.more("pipelines are tested on local_cwd")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """The pods that wait look more often than on a real cluster."""
    monkeypatch.setattr(after, "_PROGRAM", after._PROGRAM.replace("POLL_SECONDS = 5\n", "POLL_SECONDS = 0.1\n"))
    monkeypatch.setattr(actions, "POLL_SECONDS", 0.1)


@pytest.fixture
def pipeline(quick):
    """Types `torchx pipeline COMMAND p.toml WORDS`, on JobSet."""

    def type_(command, *words):
        where = ("-s", "jobset") if command == "run" else ()
        return quick("pipeline", command, *where, "p.toml", *words)

    return type_


def test_steps_run_one_after_the_other_and_once(cluster, pipeline, tmp_path):
    file = write_pipeline(tmp_path / "p.toml", a=("true",), b=(held(), "a"), c=("true", "b"))
    first = submitted(pipeline("run"))
    cluster.wait_for(lambda: done(file) == ["a"])
    wait_for(lambda: "waits for b (RUNNING)" in table(pipeline("status"))["c"][2])
    # The submitter of `b` was killed before it noted the handle, that of `c` before it submitted.
    (note,), (last,) = submissions(file, "b"), submissions(file, "c")
    (tmp_path / "out/pipeline/b-1.json").write_text(json.dumps(note | {"handle": ""}))
    lost = last | {"handle": "", "identity": last["identity"] + "x"}
    (tmp_path / "out/pipeline/c-1.json").write_text(json.dumps(lost))
    again = submitted(pipeline("run"))
    assert again["b"] == ("kept", first["b"][1])
    assert again["c"][0] == "submitted"
    (tmp_path / "go").touch()
    pipeline("run", "--wait")
    assert [state for state, *_ in table(pipeline("status")).values()] == ["SUCCEEDED"] * 3


def test_what_failed_is_run_again_with_what_waits_for_it(cluster, pipeline, tmp_path):
    file = write_pipeline(tmp_path / "p.toml", a=("true",), b=(f"{until_submitted('c')}; exit 3", "a"), c=("true", "b"))
    with pytest.raises(SystemExit) as end:
        pipeline("run", "--wait")
    assert end.value.code == 1
    status = table(pipeline("status"))
    assert [state for state, *_ in status.values()] == ["SUCCEEDED", "FAILED", "CANCELLED"]
    assert "not started: b ended as FAILED" in status["c"][2]
    write_pipeline(file, a=("true",), b=("true", "a"), c=("true", "b"))
    assert verbs(pipeline("run", "--wait")) == {"a": "kept", "b": "submitted", "c": "submitted"}
    assert done(file) == ["a", "b", "c"]
    assert "no step has a job" in pipeline("cancel")


@pytest.mark.sample(0)  # a minute
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_each_step_succeeds_once(cluster, environment, tmp_path, seed):
    """The submitter is killed while it submits, and pods are killed with their node."""
    dice = random.Random(seed)
    steps = {"a": ("sleep 1",), "b": ("sleep 1", "a"), "c": ("sleep 1", "a"), "d": ("true", "b", "c")}
    file = write_pipeline(tmp_path / "p.toml", **steps)
    run = ["torchx", "pipeline", "run", "-s", "jobset", "p.toml"]
    for _ in range(5):
        submitter = subprocess.Popen(run, cwd=tmp_path, env=environment, start_new_session=True)
        time.sleep(dice.uniform(0.8, 2.5))
        os.killpg(submitter.pid, signal.SIGKILL)
        submitter.wait()
        for pod in cluster.pods():
            if pod["status"]["phase"] == "Running" and dice.random() < 0.3:
                cluster.nodes.evict(pod)
    while (
        ended := subprocess.run([*run, "--wait"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    ).returncode:
        assert "Traceback" not in ended.stderr
    for name in steps:
        ends = [submission["ended_as"] for submission in submissions(file, name)]
        assert (ends.count("SUCCEEDED"), ends[-1]) == (1, "SUCCEEDED")
        assert done(file).count(name) >= 1
    assert [pod for pod in cluster.pods() if pod["status"]["phase"] in ("Pending", "Running")] == []
