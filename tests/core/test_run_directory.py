"""A run directory's small files."""

import json
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.core.errors import InputError
from trainer.core.run_directory import JsonLines, RunDirectory


@pytest.fixture(params=["local", "memory"])
def run(request, tmp_path):
    run = RunDirectory(f"{tmp_path}/run/" if request.param == "local" else f"memory://{tmp_path.name}/run/")
    run.create()
    return run


def test_files_are_read_and_written_by_name(run):
    assert run.read("plan.json") is None
    run.write_json("plan.json", {"tables": 2})
    assert json.loads(run.read("plan.json")) == {"tables": 2}
    assert run.url_of("checkpoints", "a") == f"{run.url}/checkpoints/a"
    assert not run.url.endswith("/")


def test_creating_it_again_keeps_what_is_there(run):
    run.write("run.json", "earlier")
    run.create()
    assert run.read("run.json") == "earlier"


def test_a_file_in_its_place_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^--out is '.*/file/run', which cannot be used: .*; name a path"):
        RunDirectory(f"{tmp_path}/file/run").create()


def steps(run):
    return [json.loads(line)["step"] for line in (run.read("log.jsonl") or "").splitlines()]


def test_lines_of_later_steps_are_dropped(run):
    log = JsonLines(run, "log.jsonl", last_step=0)
    for step in (1, 2, 3):
        log.add({"step": step})
    log.flush()
    resumed = JsonLines(run, "log.jsonl", last_step=2)
    resumed.add({"step": 3, "again": True})
    resumed.flush()
    assert [json.loads(line) for line in run.read("log.jsonl").splitlines()] == resumed.records()
    assert resumed.records() == [{"step": 1}, {"step": 2}, {"step": 3, "again": True}]


def test_a_torn_line_is_dropped(run):
    run.write("log.jsonl", '{"step": 1}\n{"step": 2}\n{"st')
    JsonLines(run, "log.jsonl", last_step=9).add({"step": 3})
    assert steps(run)[:2] == [1, 2]


def test_a_line_is_there_at_once_where_storage_can_append(tmp_path):
    run = RunDirectory(str(tmp_path))
    JsonLines(run, "log.jsonl", last_step=0).add({"step": 1})
    assert steps(run) == [1]


def test_lines_that_could_not_be_written_follow_with_the_next_flush(tmp_path):
    run = RunDirectory(str(tmp_path / "run"))
    run.create()
    log = JsonLines(run, "log.jsonl", last_step=0)
    log.add({"step": 1})
    (tmp_path / "run").rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        log.add({"step": 2})
    (tmp_path / "away").rename(tmp_path / "run")
    log.add({"step": 3})
    log.flush()
    assert steps(run) == [1, 2, 3]


@settings(deadline=None, max_examples=50)  # a busy machine is no fault
@given(st.lists(st.integers(1, 5), max_size=8), st.integers(0, 5), st.integers(0, 5), st.sampled_from(["", '{"st']))
def test_lines_are_kept_by_their_step_in_any_order(before, last_step, discarded, torn):
    for storage in ("", "memory:/"):
        with tempfile.TemporaryDirectory() as folder:
            run = RunDirectory(f"{storage}{folder}")
            text = "".join(f'{{"step": {step}, "place": {place}}}\n' for place, step in enumerate(before))
            run.create()
            run.write("log.jsonl", text + torn)
            log = JsonLines(run, "log.jsonl", last_step)
            kept = [line for line in map(json.loads, text.splitlines()) if line["step"] <= last_step]
            assert run.read_records("log.jsonl") == log.records() == kept
            log.discard(step=discarded)
            log.add({"place": 9, "step": discarded})
            log.flush()
            expected = [*(line for line in kept if line["step"] != discarded), {"place": 9, "step": discarded}]
            assert run.read_records("log.jsonl") == log.records() == expected


@pytest.mark.more("measures memory")
@pytest.mark.parametrize("resumed_from", [0, 60_000, 10**6])
def test_the_lines_of_a_long_run_are_not_in_memory(tmp_path, resumed_from):
    run = RunDirectory(str(tmp_path))
    run.write_records("log.jsonl", ({"step": step, "loss": 0.1} for step in range(1, 100_001)))
    size = len(run.read("log.jsonl"))
    tracemalloc.start()
    try:
        log = JsonLines(run, "log.jsonl", resumed_from)
        log.add({"step": resumed_from + 1})
        log.flush()
        count = sum(1 for _ in run.records("log.jsonl"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == min(resumed_from, 100_000) + 1
    assert most < size / 10


def test_a_partial_line_of_a_failed_write_is_overwritten(tmp_path):
    run = RunDirectory(str(tmp_path))
    log = JsonLines(run, "log.jsonl", last_step=0)
    log.add({"step": 1})
    with Path(tmp_path, "log.jsonl").open("a") as file:
        file.write('{"st')
    log.add({"step": 2})
    assert steps(run) == [1, 2]
