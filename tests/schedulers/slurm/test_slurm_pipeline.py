"""Pipelines on a real Slurm."""

import json
import os
import random
import signal
import subprocess
import time

import pytest
from pipelines_of_shell import done, held, submissions, submitted, table, verbs, write_pipeline
from shells import wait_for
from slurm_shell import Shell, number

pytestmark = [pytest.mark.slurm, pytest.mark.more("pipelines are tested on local_cwd")]


@pytest.fixture
def shell(clusters, tmp_path):
    return Shell(clusters(True), tmp_path)


@pytest.fixture
def pipeline(shell, tmp_path):
    """Types `torchx pipeline COMMAND p.toml WORDS`, on Slurm."""

    def type_(command, *words, code=0):
        where = ("-s", "slurm") if command == "run" else ()
        return shell.torchx("pipeline", command, *where, "p.toml", *words, code=code)

    return type_


def test_steps_run_one_after_the_other_and_once(shell, pipeline, tmp_path):
    file = write_pipeline(tmp_path / "p.toml", a=("true",), b=(held(), "a"), c=("true", "b"))
    first = submitted(pipeline("run"))
    assert {what for what, _ in first.values()} == {"submitted"}
    shell.wait(first["b"][1], "RUNNING")
    assert "waits for b (RUNNING" in table(pipeline("status"))["c"][2]
    # The submitter of `b` was killed before it noted the handle.
    (note,) = submissions(file, "b")
    (tmp_path / "out/pipeline/b-1.json").write_text(json.dumps(note | {"handle": ""}))
    assert submitted(pipeline("run")) == {name: ("kept", job) for name, (_, job) in first.items()}
    (tmp_path / "go").touch()
    pipeline("run", "--wait")
    assert done(file) == ["a", "b", "c"]


@pytest.mark.sample(0)  # minutes
@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_killed_each_step_succeeds_once(shell, tmp_path, seed):
    """The submitter is killed while it submits, the controller at any time, and nodes lose their power."""
    dice = random.Random(seed)
    steps = {"a": ("sleep 2",), "b": ("sleep 2", "a"), "c": ("sleep 2", "a"), "d": ("true", "b", "c")}
    file = write_pipeline(tmp_path / "p.toml", **steps)
    run = ("torchx", "pipeline", "run", "-s", "slurm", "p.toml")
    for _ in range(5):
        submitter = subprocess.Popen(run, cwd=tmp_path, env=shell.env, start_new_session=True)
        time.sleep(dice.uniform(0.8, 3))
        os.killpg(submitter.pid, signal.SIGKILL)
        submitter.wait()
        lost = dice.choice(["controller", "node", "nothing"])
        if lost == "controller":
            with shell.cluster.controller_away():
                time.sleep(dice.uniform(0, 3))
        elif lost == "node":
            node = f"n{dice.randint(1, 2)}"
            shell.cluster.cut_power(node)
            time.sleep(dice.uniform(0, 3))
            shell.cluster.start_node(node)
    while (done_ := shell.try_torchx(*run[1:], "--wait")).returncode:
        assert "Traceback" not in done_.stderr
    for name in steps:
        ends = [submission["ended_as"] for submission in submissions(file, name)]
        assert (ends.count("SUCCEEDED"), ends[-1]) == (1, "SUCCEEDED")
        assert done(file).count(name) >= 1
    assert shell.cluster.run("squeue", "--me", "-h", "-t", "pending,running") == ""


@pytest.mark.sample(0)  # the same as here
def test_what_failed_is_run_again_with_what_waits_for_it(shell, pipeline, tmp_path):
    file = write_pipeline(tmp_path / "p.toml", a=("true",), b=(f"{held()}; exit 3", "a"), c=("true", "b"))
    first = submitted(pipeline("run"))
    (tmp_path / "go").touch()
    shell.wait(first["b"][1])
    write_pipeline(file, a=("true",), b=("true", "a"), c=("true", "b"))
    assert verbs(pipeline("run", "--wait")) == {"a": "kept", "b": "submitted", "c": "submitted"}
    assert done(file) == ["a", "b", "c"]
    assert shell.wait(first["c"][1])["state"] == "CANCELLED"


def test_a_step_that_is_requeued_stays_awaited_and_a_cancel_ends_all(shell, pipeline, tmp_path):
    tried = tmp_path / "tried"
    again = f"test -e {tried} || {{{{ touch {tried}; exit 5; }}}}"
    file = write_pipeline(tmp_path / "p.toml", a=(again,), b=(held(), "a"), c=("true", "b"))
    text = file.read_text().replace("[steps.a.arguments]", "[steps.a.arguments]\nmax_retries = 1")
    file.write_text(text)
    jobs = submitted(pipeline("run"))
    shell.wait(jobs["b"][1], "RUNNING")
    assert (tried.exists(), done(file)) == (True, ["a"])
    assert pipeline("cancel") == f"cancelled c, {jobs['c'][1]}\ncancelled b, {jobs['b'][1]}\n"
    wait_for(lambda: shell.cluster.run("squeue", "--me", "-h", "-j", number(jobs["b"][1]), check=False) == "")
    assert [state for state, *_ in table(pipeline("status")).values()] == ["SUCCEEDED", "CANCELLED", "CANCELLED"]
