"""Profiles of training: traces, and the split of a step that is printed."""

import gzip
import json
import re
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from jobs import config, launch_rounds, losses
from trainer_process import Training, committed

from trainer.config.root import load_config

PARTS = {"input", "forward", "exchange", "backward", "update", "other"}
DETAILS = {"update: tables", "update: dense part", "other: reports"}
FIRST, STEPS = 6, 5


def demo(folder, rows=4096):
    """Returns the configuration of `make demo`, on made-up ratings."""
    tree = load_config("movielens").model_dump(exclude_none=True)
    random = np.random.default_rng(0)
    columns = {name: random.random(rows).astype(np.float32) for name in tree["data"]["dense"]}
    columns |= {name: random.integers(0, one["rows"], rows) for name, one in tree["data"]["sparse"].items()}
    columns["genres"] = [random.integers(0, 19, random.integers(1, 4)) for _ in range(rows)]
    labels = {name: random.integers(0, 2, rows).astype(np.float32) for name in tree["data"]["labels"]}
    folder.mkdir()
    pq.write_table(pa.table(columns | labels), folder / "ratings.parquet", row_group_size=512)
    tree["data"] |= {"train": [str(folder)], "validation": [], "test": []}
    tree["report"] |= {"interval_steps": 1, "tensorboard": False}
    return tree


def profiled(tree, **keys):
    return tree | {"report": tree["report"] | {"profile": {"first_step": FIRST, "steps": STEPS, **keys}}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The demo with and without a profile on two ranks; and one that ends in its window and is resumed on one rank."""
    folder = tmp_path_factory.mktemp("profile")
    tree = demo(folder / "data")
    tree["train"] = {"steps": 14}
    short = tree | {"train": {"steps": FIRST + 1}}
    rest = profiled(tree, steps=8)
    output = launch_rounds(
        [
            (2, [{"config": profiled(tree, ranks=[0, 1]), "out": str(folder / "on")}]),
            (2, [{"config": tree, "out": str(folder / "off")}]),
            (2, [{"config": profiled(short), "out": str(folder / "resumed")}]),
            (1, [{"config": rest, "out": str(folder / "resumed"), "resume": "must"}]),
        ],
        folder,
    )
    return folder, output


def trace(run, step, rank):
    return json.loads(gzip.decompress((run / f"traces/step-{step}-rank-{rank}.json.gz").read_bytes()))["traceEvents"]


def ranges(events, pattern):
    return [event for event in events if event.get("cat") == "user_annotation" and re.fullmatch(pattern, event["name"])]


def steps_of(run, step, rank):
    return [int(event["name"].partition("#")[2]) for event in ranges(trace(run, step, rank), r"ProfilerStep#\d+")]


def printed_table(output):
    """Returns the first table of a profile: the mean of each row in milliseconds, and its imbalance."""
    lines = output[output.index("profile of steps") :].splitlines()[3:]
    rows = [re.split(r"\s{2,}", line) for line in lines[: lines.index("")]]
    return {row[0]: (float(row[1]), row[5:]) for row in rows}


@pytest.mark.parametrize("rank", [0, 1])
def test_the_trace_holds_the_steps_of_the_window(runs, rank):
    assert steps_of(runs[0] / "on", FIRST, rank)[:STEPS] == list(range(FIRST, FIRST + STEPS))


def test_the_printed_split_adds_up_to_the_time_of_a_step(runs):
    table = printed_table(runs[1])
    assert table.keys() == PARTS | DETAILS | {"step", "computing"}
    steps = [
        event["dur"] / 1e3
        for rank in (0, 1)
        for event in ranges(trace(runs[0] / "on", FIRST, rank), r"ProfilerStep#\d+")[:STEPS]
    ]
    assert table["step"][0] == pytest.approx(np.mean(steps), rel=0.05)
    assert sum(table[part][0] for part in PARTS) == pytest.approx(np.mean(steps), rel=0.05)
    assert all(table[part][0] > 0 for part in PARTS)


def test_the_named_parts_are_most_of_a_step(runs):
    """Of the least disturbed step: a rank that waits for its core may do so in no part."""
    shares = []
    for rank in (0, 1):
        events = trace(runs[0] / "on", FIRST, rank)
        parts = ranges(events, rf"## ({'|'.join(PARTS - {'other'})}|wait_for_batch \d+) ##")
        for step in ranges(events, r"ProfilerStep#\d+")[:STEPS]:
            inside = [part["dur"] for part in parts if 0 <= part["ts"] - step["ts"] < step["dur"]]
            shares.append(sum(inside) / step["dur"])
    assert 0.5 < max(shares) <= 1


def test_input_is_the_sum_of_its_ranges(runs):
    """No other part is inside of them."""
    split = json.loads((runs[0] / "on" / f"traces/step-{FIRST}.json").read_text())
    assert (split["first_step"], split["steps"]) == (FIRST, STEPS)
    for rank, found in enumerate(split["ranks"]):
        events = trace(runs[0] / "on", FIRST, rank)
        steps = ranges(events, r"ProfilerStep#\d+")[:STEPS]
        start, end = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
        inputs = ranges(events, r"## (input|wait_for_batch \d+) ##")
        times = [event["dur"] for event in inputs if start <= event["ts"] < end]
        assert found["parts"]["input"] == pytest.approx(sum(times) / STEPS / 1e3, rel=0.01)


def test_the_ten_costliest_are_printed_in_order(runs):
    lines = runs[1][runs[1].index("costliest on rank") :].splitlines()[2:12]
    times = [float(re.split(r"\s{2,}", line)[1]) for line in lines]
    assert times == sorted(times, reverse=True)
    assert times[-1] > 0


def test_a_profile_changes_no_loss(runs):
    assert losses(runs[0] / "on") == losses(runs[0] / "off")
    assert not (runs[0] / "off" / "traces").exists()


def test_a_resumed_run_profiles_the_rest_of_the_window(runs):
    run = runs[0] / "resumed"
    # The first run ends in the window; the second warms the profiler up in its own first step.
    assert steps_of(run, FIRST, 0)[:2] == [FIRST, FIRST + 1]
    assert {path.name for path in (run / "traces").glob("*.json")} == {"step-6.json", "step-9.json"}
    assert json.loads((run / "traces/step-9.json").read_text())["steps"] == 5
    assert losses(run)[: FIRST + 1] == losses(runs[0] / "off")[: FIRST + 1]


@pytest.mark.more("a profile of a window stands for it")
def test_a_running_job_is_profiled_on_request(rows, tmp_path):
    tree = config(rows, model__name="custom:unhurried", train__steps=1_000_000)
    job = Training(write_config(tmp_path / "config.toml", tree), tmp_path / "out").after_steps(5)
    request = ["profile", "--out", job.out, "--steps"]
    wrong = run_trainer(*request, 2, "--ranks", 7)
    assert wrong.returncode == 0
    job.wait_until(lambda: "the requested profile cannot be made: report.profile.ranks has 7" in job.output())
    assert run_trainer(*request, 3, "--ranks", 1, "--stacks", "True").returncode == 0
    job.wait_until(lambda: "costliest on rank" in job.output())
    (file,) = (job.out / "traces").glob("*.json.gz")
    step = int(re.fullmatch(r"step-(\d+)-rank-1\.json\.gz", file.name)[1])
    assert steps_of(job.out, step, 1)[:3] == [step, step + 1, step + 2]
    assert any(event.get("cat") == "python_function" for event in trace(job.out, step, 1))
    assert not (job.out / "profile.request").exists()

    # A stop in the window, after the checkpoint, leaves what was recorded of it.
    before = job.steps()
    assert run_trainer(*request, 1_000_000).returncode == 0
    job.wait_until(lambda: not (job.out / "profile.request").exists())
    job.after_steps(max(before, job.steps()) + 10).signal(signal.SIGTERM).end()
    (file,) = (job.out / "traces").glob("*-rank-0.json.gz")
    (saved,) = committed(job.out)
    step = int(re.match(r"step-(\d+)", file.name)[1])
    assert steps_of(job.out, step, 0)[: saved - step + 1] == list(range(step, saved + 1))
    assert "which no job is writing to" in run_trainer(*request, 3).stderr
