"""Pipelines on `local_cwd`: what is submitted, what is kept, and what happens when something is killed."""

import json
import os
import random
import re
import signal
import time
from contextlib import suppress

import pytest
from pipelines_of_shell import done, held, submissions, submitted, table, until_submitted, verbs, write_pipeline
from shells import ENDED, wait_for

from torchx_recsys.pipelines.record import Record

LATE = """
import time
from pathlib import Path
from torchx.components.utils import sh as shell
from torchx.specs import AppDef

def sh(*args: str) -> AppDef:
    \"\"\"A shell.

    Args:
        args: Its words.
    \"\"\"
    record, states = Path("out/pipeline/a-1.json"), Path("../state")
    while record.exists() and not any("FAILED" in file.read_text() for file in states.glob("**/progress.json")):
        time.sleep(0.05)
    return shell(*args)
"""


class File:
    """A pipeline of lines of shell, in a shell of the user's."""

    def __init__(self, torchx, **steps):
        self.torchx, self.folder = torchx, torchx.home / "elsewhere"
        self.folder.mkdir(exist_ok=True)
        self.file = self.folder / "p.toml"
        self.write(**steps)

    def write(self, **steps):
        write_pipeline(self.file, **steps)

    def __call__(self, *words, code=0):
        done = self.torchx("pipeline", *words[:1], self.file, *words[1:])
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def run(self, *words, code=0):
        return self("run", *words, code=code).stdout

    def status(self):
        return table(self("status").stdout)

    def wait(self, **states):
        for name, state in states.items():
            wait_for(lambda name=name, state=state: self.torchx.progress(self.handle(name))["state"] == state)

    def submissions(self, step):
        return submissions(self.file, step)

    def handle(self, step):
        return self.submissions(step)[-1]["handle"]

    def done(self):
        return done(self.file)


def active(torchx):
    """The handles of the jobs that have not ended."""
    lines = torchx("list", "-s", "local_cwd").stdout.splitlines()
    return [line.split()[0] for line in lines if line.startswith("local_cwd://") and not line.endswith(ENDED)]


def test_steps_run_one_after_the_other_and_once(torchx):
    file = File(torchx, a=("true",), b=(held(), "a"), c=("true", "b"))
    assert verbs(file.run()) == {"a": "submitted", "b": "submitted", "c": "submitted"}
    file.wait(a="SUCCEEDED", b="RUNNING", c="PENDING")
    assert "waits for b (RUNNING" in " ".join(file.status()["c"])
    again = file.run()
    assert verbs(again) == {"a": "kept", "b": "kept", "c": "kept"}
    (file.folder / "go").touch()
    file.wait(c="SUCCEEDED")
    assert verbs(file.run("--wait")) == {"a": "kept", "b": "kept", "c": "kept"}
    assert file.done() == ["a", "b", "c"]
    assert [state for state, *_ in file.status().values()] == ["SUCCEEDED"] * 3


def test_a_failed_step_is_run_again_with_those_after_it(torchx):
    file = File(torchx, a=("true",), b=(f"{until_submitted('c')}; exit 3", "a"), c=("true", "b"))
    file.run("--wait", code=1)
    status = file.status()
    assert [status[name][0] for name in "abc"] == ["SUCCEEDED", "FAILED", "CANCELLED"]
    assert status["b"][2] == "sh/0 ended with exit code 3"
    assert status["c"][2] == "not started: b ended as FAILED"
    file.write(a=("true",), b=("true", "a"), c=("true", "b"))
    assert verbs(file.run("--wait")) == {"a": "kept", "b": "submitted", "c": "submitted"}
    assert file.done() == ["a", "b", "c"]


def test_a_step_with_other_inputs_is_run_again_with_those_after_it(torchx):
    file = File(torchx, a=("true",), b=("true", "a"), c=("true", "b"), other=("true",))
    file.run("--wait")
    file.write(a=("true",), b=("true; true", "a"), c=("true", "b"), other=("true",))
    assert verbs(file.run("--wait")) == {"a": "kept", "b": "submitted", "c": "submitted", "other": "kept"}
    assert verbs(file.run("--from", "c", "--wait")) == {"a": "kept", "b": "kept", "c": "submitted", "other": "kept"}
    only = file.run("--only", "a", "--wait")
    assert verbs(only) == {"a": "submitted", "b": "kept", "c": "kept", "other": "kept"}
    assert sorted(file.done()) == [*sorted("abcbcca"), "other"]


@pytest.mark.more("a race")
def test_a_step_that_runs_is_not_run_beside_itself(torchx):
    file = File(torchx, a=(held(),), b=("true", "a"))
    file.run()
    file.wait(a="RUNNING")
    for words in (("--from", "a"), ("--only", "a"), ("--set", f"go={file.folder}/other")):
        said = file("run", *words, code=2).stderr.splitlines()[-1]
        assert said.startswith(
            f"torchx pipeline: error: step a still runs as {file.handle('a')}, and is asked for again"
        )
    assert "step a, which it needs, has not succeeded" in file("run", "--only", "b", code=2).stderr
    # One that has not started is replaced.
    file.write(a=(held(),), b=("true; true", "a"))
    first = file.handle("b")
    assert verbs(file.run()) == {"a": "kept", "b": "submitted"}
    assert torchx.progress(first)["state"] == "CANCELLED"
    assert file("cancel").stdout == f"cancelled b, {file.handle('b')}\ncancelled a, {file.handle('a')}\n"
    file.wait(a="CANCELLED", b="CANCELLED")
    assert file.done() == []


def test_logs_are_those_of_the_newest_jobs(torchx):
    file = File(torchx, a=("echo one",), b=("echo two", "a"))
    assert "no step was submitted" in file("log", code=2).stderr
    file.run()
    assert re.fullmatch(
        r"== a\nsh/0 one\n== b\n(sh/0 torchx: waits for \S+ \(\w+\)\n)?sh/0 two\n", file("log", "-f").stdout
    )
    assert file("log", "a").stdout == "sh/0 one\n"


def test_steps_after_one_that_fails_while_they_are_submitted_are_refused(torchx):
    file = File(torchx, a=("exit 3",), b=("true",), c=("true", "a", "b"), d=("true", "c"))
    # A component of one's own, which is asked for `b` again only after `a` has failed.
    component = file.folder / "late.py"
    component.write_text(LATE)
    file.file.write_text(
        file.file.read_text().replace('[steps.b]\ncomponent = "utils.sh"', '[steps.b]\ncomponent = "late.py:sh"')
    )
    said = file("run", code=1).stdout
    assert verbs(said) == {
        "a": "submitted",
        "b": "submitted",
        "c": "refused",
        "d": "refused",
    }
    assert "c  refused    -cfg after=a: this job has ended as FAILED; nothing was submitted" in said
    assert "d  refused    needs c" in said
    assert [state for state, *_ in file.status().values()][2:] == ["NOT SUBMITTED"] * 2


@pytest.mark.more("a rare fault")
def test_the_job_of_a_submitter_that_was_killed_is_found_again(torchx):
    file = File(torchx, a=(held(),), b=("true",), c=("true",))
    file.run("--only", "a")
    (note,) = file.submissions("a")
    folder = file.folder / "out/pipeline"
    for name, lost in {
        "a": note | {"handle": ""},  # it has submitted the step
        "b": note | {"step": "b", "handle": "", "identity": "sh-nowhere"},  # it was about to
    }.items():
        (folder / f"{name}-1.json").write_text(json.dumps(lost))
    (folder / "c-1.json").write_text("")
    assert submitted(file.run()) == {
        "a": ("kept", note["handle"]),
        "b": ("submitted", file.handle("b")),
        "c": ("submitted", file.handle("c")),
    }
    assert (file.submissions("a"), len(file.submissions("b"))) == ([note], 2)
    (file.folder / "go").touch()
    file.run("--wait")
    assert sorted(file.done()) == ["a", "b", "c"]


@pytest.mark.more("a race")
def test_two_shells_do_not_submit_one_step_twice(torchx):
    file = File(torchx, a=(held(),), b=(held(),))
    shells = [torchx.open("pipeline", "run", file.file, cwd=file.folder) for _ in range(3)]
    said = [shell.communicate(timeout=600)[1] for shell in shells]
    assert sorted(len(file.submissions(name)) for name in "ab") == [1, 1], said
    assert len(active(torchx)) == 2
    for shell, text in zip(shells, said, strict=True):
        assert shell.returncode == 0 or "is writing to; wait for it, stop it or choose another out" in text


@pytest.mark.more("a race")
def test_a_shell_waits_for_another_that_submits(torchx):
    file = File(torchx, a=("true",))
    with Record(str(file.folder / "out"), "pipeline", "pipeline").alone():
        shell = torchx.open("pipeline", "run", file.file, cwd=file.folder)
        waits = shell.stdout.readline()
        assert f"out/pipeline is locked by process {os.getpid()} on " in waits
        assert file.submissions("a") == []
    said, errors = shell.communicate(timeout=600)
    assert verbs(said) == {"a": "submitted"}, errors


@pytest.mark.more("random moments")
@pytest.mark.sample(2)
@pytest.mark.parametrize("moment", range(8))
def test_whatever_is_killed_each_step_succeeds_once(torchx, moment):
    """The submitter is killed while it submits, supervisors while their jobs run."""
    dice = random.Random(moment)
    steps = dict(a=("sleep 0.3",), b=("sleep 0.3", "a"), c=("sleep 0.3", "a"), d=("sleep 0.1", "b", "c"))
    file = File(torchx, **steps)
    for _ in range(3):
        shell = torchx.open("pipeline", "run", file.file, cwd=file.folder)
        time.sleep(dice.uniform(0.8, 2.5))
        os.killpg(shell.pid, signal.SIGKILL)
        for handle in active(torchx):
            supervisor = torchx.progress(handle).get("supervisor")
            if dice.random() < 0.3 and supervisor:
                with suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGKILL)
    while True:
        done = torchx("pipeline", "run", file.file, "--wait")
        if done.returncode == 0:
            break
        assert "Traceback" not in done.stderr
    for name in steps:
        ends = [submission["ended_as"] for submission in file.submissions(name)]
        assert ends.count("SUCCEEDED") == 1 == ends[-1:].count("SUCCEEDED")
        # A supervisor can die just after its program has ended, before it has noted that.
        assert 1 <= file.done().count(name) <= len(ends)
    assert active(torchx) == []
