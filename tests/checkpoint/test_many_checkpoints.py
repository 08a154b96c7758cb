"""A run with many checkpoints on an object store: what a job knows of them is not read again after each save."""

import json

import pytest
from object_store import object_store

from trainer.checkpoint.retention import named_ends
from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import JsonLines, RunDirectory

pytestmark = pytest.mark.more("a run with hundreds of checkpoints")

CHECKPOINTS = 30


@pytest.fixture
def store(monkeypatch):
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.fs.mkdir("bucket")
        yield store


def commit(checkpoints, step, predecessor=None, ends=None, segment=None):
    """Commits a checkpoint; with `segment` as before what ends with a checkpoint was marked."""
    checkpoints.begin(step)
    state = {"segment": {"name": segment, "last_step": step}} if segment else {"ends": ends} if ends else {}
    checkpoints.commit(step, {}, {"state.json": json.dumps({"step": step, **state})}, predecessor)


def listed(checkpoints):
    steps = checkpoints.with_predecessors()
    return steps, named_ends(checkpoints, [*steps])


def test_only_new_checkpoints_are_read(store):
    run = RunDirectory("s3://bucket/run")
    mine, found = Checkpoints(run), Checkpoints(run)
    for step in range(1, CHECKPOINTS + 1):
        commit(mine, step, ends=f"day {step}" if step % 2 else None)
    expected = listed(found)
    assert expected == (dict.fromkeys(range(1, 31)), {step: f"day {step}" for step in range(1, 31, 2)})
    with store.faults({"fault": "slow", "seconds": 0}) as requests:
        assert listed(found) == expected
        assert requests() <= 2
        assert found.uncommitted() == []
        assert requests() <= 4


def test_what_is_known_of_checkpoints_follows_what_happens_to_them(store):
    run = RunDirectory("s3://bucket/run")
    mine, other = Checkpoints(run), Checkpoints(run)
    for step in (1, 2, 3):
        commit(mine, step, step - 1 or None, segment="night")
    assert listed(mine) == ({1: None, 2: 1, 3: 2}, dict.fromkeys((1, 2, 3), "night"))
    other.remove(3)
    mine.remove(2)
    assert listed(mine) == ({1: None}, {1: "night"})
    mine.begin(2)
    run.write("checkpoints/step-000000002/state.json", "{}")
    assert (mine.steps(), mine.uncommitted()) == ([1], [2])
    commit(mine, 2, ends="morning")
    assert listed(mine) == listed(Checkpoints(run)) == ({1: None, 2: None}, {1: "night", 2: "morning"})


def test_lines_of_a_resumed_run_replace_those_of_later_steps(store):
    run = RunDirectory("s3://bucket/run")
    run.write_records("log.jsonl", ({"step": step} for step in range(1, 1001)))
    log = JsonLines(run, "log.jsonl", 600)
    log.add({"step": 601, "again": True})
    assert sum(1 for _ in run.records("log.jsonl")) == 600
    with store.faults({"fault": "slow", "seconds": 0}) as requests:
        log.flush()
        log.flush()
        assert requests() == 1
    assert run.read_records("log.jsonl") == [*({"step": n} for n in range(1, 601)), {"step": 601, "again": True}]
