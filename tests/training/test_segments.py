"""Training on segments: evaluated before they are trained on, once and in order, whatever is killed."""

import json
import os
import random
import re
import shutil
import signal

import pyarrow.parquet as pq
import pytest
import torch
from command import run_trainer, write_config
from jobs import config, losses, saved_tensors, write_rows
from trainer_process import Training, committed

SIZES = {"mon": 200, "thu": 90, "tue": 64, "wed": 150}  # by name, which is their order
STEPS = [4, 6, 7, 10]
"""Steps of 64 samples when each segment is done."""


@pytest.fixture(scope="module")
def week(tmp_path_factory):
    """A directory for each segment, with a file or two."""
    folder = tmp_path_factory.mktemp("week")
    for seed, (name, size) in enumerate(SIZES.items()):
        write_rows(folder / f"day={name}", [size // 2, size - size // 2], seed)
    return folder


@pytest.fixture
def here(week, tmp_path):
    """A copy of the week, for tests that change it."""
    shutil.copytree(week, tmp_path / "week")
    return tmp_path / "week"


def tree(week, **changes):
    found = config(
        week,
        data__segments={"path": f"{week}/day={{segment}}"},
        checkpoint__every_steps=3,
        checkpoint__keep={"newest": 9},
    )
    found["data"].pop("train")
    found["train"].pop("steps")
    for key, value in changes.items():
        found["data"]["segments"][key] = value
    return found


def train(week, folder, *flags, code=0, **changes):
    """Trains in `folder/out` and returns what was printed."""
    file = write_config(folder / "config.toml", tree(week, **changes))
    done = run_trainer("train", file, "--out", folder / "out", *flags)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def ledger(out):
    return [json.loads(line) for line in (out / "segments.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(week, tmp_path_factory):
    """The directories of runs of the whole week, by the number of ranks; one has ids that come and go."""
    runs = {}
    for ranks in (1, 2, "managed"):
        runs[ranks], settings = tmp_path_factory.mktemp("undisturbed") / "out", tree(week)
        if ranks == "managed":
            settings["data"]["sparse"]["s0"] = {"rows": 40, "ids": "managed"}
        file = write_config(runs[ranks].parent / "config.toml", settings)
        done = run_trainer("train", file, "--out", runs[ranks], ranks=2 if ranks == 2 else 0)
        assert done.returncode == 0, done.stderr
    return runs


def test_each_is_evaluated_before_it_is_trained_on_and_once(undisturbed, week, tmp_path):
    out = undisturbed[1]
    lines = ledger(out)
    assert [(line["segment"], line["samples"], line["step"]) for line in lines] == [
        (name, size, step) for (name, size), step in zip(SIZES.items(), STEPS, strict=True)
    ]
    assert len(losses(out)) == STEPS[-1]
    assert [line["epoch"] for line in map(json.loads, (out / "metrics.jsonl").open())] == [0] * 4 + [1, 1, 2] + [3] * 3
    # By another command, of the checkpoint that was there before the segment.
    for line in lines[1:]:
        words = ("--data.segments.path", "None", "--data.test", week / f"day={line['segment']}")
        where = tmp_path / line["segment"]
        shutil.copytree(out, where)
        file = write_config(tmp_path / "alone.toml", tree(week))
        done = run_trainer("evaluate", file, "--out", where, "--checkpoint", line["first_step"], *words)
        assert done.returncode == 0, done.stderr
        alone = json.loads((where / "evaluation-test.json").read_text())
        assert line["before"] == {name: value for name, value in alone.items() if name not in ("step", "split")}


def test_a_segment_is_trained_on_as_by_a_run_of_its_own(undisturbed, week, tmp_path):
    """The first segment, and the second by a run that is fine-tuned from the first: the same losses."""
    first = config(week / "day=mon", train__epochs=1)
    first["train"].pop("steps")
    done = run_trainer("train", write_config(tmp_path / "first.toml", first), "--out", tmp_path / "first")
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "first") == losses(undisturbed[1])[:4]
    source = str(tmp_path / "first/checkpoints/step-000000004")
    then = config(week / "day=thu", train__epochs=1, finetune__checkpoint=source)
    then["train"].pop("steps")
    done = run_trainer("train", write_config(tmp_path / "then.toml", then), "--out", tmp_path / "then")
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "then") == losses(undisturbed[1])[4:6]


def lines_of(name):
    """Returns a function that counts the lines of a file of a run."""
    return lambda out: (out / name).read_text().count("\n") if (out / name).exists() else 0


SIGNS = [
    (lines_of("metrics.jsonl"), 9),
    (lines_of("evaluations.jsonl"), 4),
    (lines_of("segments.jsonl"), 3),
    (lambda out: max(committed(out), default=0) if (out / "checkpoints").exists() else 0, 9),
]
"""What tells how far a job is that is to be killed, and the most of it before the end."""


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ranks", [1, 2, "managed"])
def test_whatever_is_killed_the_run_is_the_undisturbed_one(undisturbed, week, tmp_path, ranks, seed):
    dice, out, there = random.Random(f"{ranks} {seed}"), tmp_path / "out", undisturbed[ranks]
    file, ranks = there.parent / "config.toml", 1 if ranks == "managed" else ranks
    for _ in range(2):
        job = Training(file, out, ranks=0 if ranks == 1 else ranks)
        reached, most = dice.choice(SIGNS)
        at = dice.randint(1, most)
        while job.process.poll() is None and reached(out) < at:
            pass
        job.kill()
    last = Training(file, out, ranks=0 if ranks == 1 else ranks)
    last.end()
    assert last.code == 0, last.output()
    for name in ("segments.jsonl", "evaluations.jsonl"):
        assert (out / name).read_text() == (there / name).read_text()
    assert losses(out) == losses(there)
    here, there = (saved_tensors(run, STEPS[-1]) for run in (out, there))
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        torch.testing.assert_close(tensor, there[name], rtol=0, atol=0, msg=name)


def test_jobs_take_the_segments_in_turn(undisturbed, week, tmp_path):
    assert "segment mon: 200 samples, steps 1 to 4" in train(week, tmp_path, until="mon")
    assert "there is no segment after mon" in train(week, tmp_path, until="mon")
    assert len(ledger(tmp_path / "out")) == 1
    train(week, tmp_path, most=2)
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon", "thu", "tue"]
    train(week, tmp_path)
    assert ledger(tmp_path / "out") == ledger(undisturbed[1])


def test_metrics_may_be_others_from_one_job_to_the_next(week, tmp_path):
    train(week, tmp_path, until="mon")
    said = train(week, tmp_path, "--evaluate.metrics", "auc", "auprc", until="thu")
    header, _, first, second = said.partition("\nsegment  ")[2].splitlines()[:4]
    assert ("auprc" in header, "log_loss" in header) == (True, True)
    assert (first[:3], second[:3]) == ("mon", "thu")
    assert "<td>thu</td>" in (tmp_path / "out/run.html").read_text()


def test_a_segment_is_trained_on_once_it_is_complete(here, tmp_path):
    (here / "day=mon/_SUCCESS").touch()
    assert "segment thu has no _SUCCESS" in train(here, tmp_path, marker="_SUCCESS")
    (here / "day=tue/_SUCCESS").touch()  # is not taken before its turn
    assert "segment thu has no _SUCCESS" in train(here, tmp_path, marker="_SUCCESS")
    assert "segment thu has 2 of at least 3 files" in train(here, tmp_path, least_files=3)
    assert re.search(r"segment thu changed \d+ s ago, of 3,600", train(here, tmp_path, least_age_seconds=3600.0))
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon"]
    os.utime(here / "day=thu/part-00.parquet", (1, 1))
    os.utime(here / "day=thu/part-01.parquet", (1, 1))
    train(here, tmp_path, least_age_seconds=3600.0)
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon", "thu"]


def test_late_changed_empty_and_missing_segments(here, tmp_path):
    shutil.move(here / "day=thu", tmp_path / "late")
    empty = pq.read_table(here / "day=tue").slice(0, 0)
    shutil.rmtree(here / "day=tue")
    (here / "day=tue").mkdir()
    pq.write_table(empty, here / "day=tue/part.parquet")
    assert "segment tue has no rows, and is passed over" in train(here, tmp_path)
    lines = ledger(tmp_path / "out")
    assert [(line["segment"], line["samples"]) for line in lines] == [("mon", 200), ("tue", 0), ("wed", 150)]
    assert (lines[1]["before"], lines[1]["step"]) == (None, 4)
    before = (tmp_path / "out/segments.jsonl").read_text()
    shutil.move(tmp_path / "late", here / "day=thu")
    write_rows(here / "day=mon", [10], seed=9)
    said = train(here, tmp_path)
    assert "warning: segment thu came after segment wed was trained on; training goes on without it" in said
    assert "warning: segment tue came after" not in said
    assert "warning: the files of segment mon changed after it was trained on; training goes on without it" in said
    assert (tmp_path / "out/segments.jsonl").read_text() == before
    refused = train(here, tmp_path, code=2, changed="stop")
    assert "came after segment wed was trained on; data.segments.changed = 'tell' goes on without it" in refused


def test_a_segment_that_changes_under_way_is_refused(here, tmp_path):
    file = write_config(tmp_path / "config.toml", tree(here))
    job = Training(file, tmp_path / "out", ranks=0)
    job.wait_until(lambda: (tmp_path / "out").exists() and 3 in committed(tmp_path / "out"), seconds=60)
    job.kill()
    for step in committed(tmp_path / "out"):
        if step > 3:
            shutil.rmtree(tmp_path / f"out/checkpoints/step-{step:09d}")
    write_rows(here / "day=mon", [10], seed=9)
    assert "the training data changed since the checkpoint" in train(here, tmp_path, code=2)
    for file in (here / "day=mon").iterdir():
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    assert "has no rows in its 2 files" in train(here, tmp_path, code=2)


def test_a_job_that_follows_waits_and_leaves_when_asked_to(undisturbed, week, here, tmp_path):
    shutil.move(here / "day=wed", tmp_path / "wed")
    file = write_config(tmp_path / "config.toml", tree(here, follow=True, poll_seconds=0.2, until="wed"))
    job = Training(file, tmp_path / "out", ranks=2)
    job.wait_until(lambda: "there is no segment after tue; waiting" in job.output(), seconds=100)
    job.signal(signal.SIGTERM).end(100)
    assert job.outcome().startswith("stopped at step 7, saved ")
    assert json.loads((tmp_path / "out/run.json").read_text())["state"] == "stopped"
    job = Training(file, tmp_path / "out", ranks=2)
    job.wait_until(lambda: "there is no segment after tue; waiting" in job.output(), seconds=100)
    shutil.move(tmp_path / "wed", here / "day=wed")
    job.end(100)
    assert (job.code, job.outcome()) == (0, "finished at step 10 after segment wed\n")
    without = ("fingerprint",)  # of the URLs, which are others here
    lines = [
        [{k: v for k, v in line.items() if k not in without} for line in ledger(out)]
        for out in (tmp_path / "out", undisturbed[2])
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--data.segments.path", "/nosuch/dt=x"],
            "data.segments.path is '/nosuch/dt=x', which must have {segment} once",
        ),
        (["--data.segments.path", "/nosuch/{segment}"], "'/nosuch/{segment}', where no segment is there to train on"),
        (["--data.segments.path", "nosuch://b/{segment}"], "data.segments.path"),
        (["--data.segments.until", "a", "--data.segments.first", "b"], "data.segments.until is 'a', before"),
        (["--data.train", "rows"], "data.train is set, and so is data.segments.path"),
        (["--data.validation", "rows"], "data.validation is set, and so is data.segments.path"),
        (["--data.test", "rows"], "data.test is set, and so is data.segments.path"),
        (["--train.steps", "9"], "train.steps is set, and so is data.segments.path"),
        (["--train.epochs", "2"], "train.epochs is set, and so is data.segments.path"),
        (["--evaluate.every_steps", "2"], "evaluate.every_steps is set, and so is data.segments.path"),
        (["--data.segments.most", "0"], "data.segments.most is 0"),
        (["--data.segments.poll_seconds", "0"], "data.segments.poll_seconds"),
        (["--data.segments.changed", "train"], "data.segments.changed"),
        (["--data.segments.least_files", "0"], "data.segments.least_files"),
        (["--checkpoint.keep.best", "auc"], "checkpoint.keep.best is 'auc', but data.validation is empty"),
        (
            ["--optimizer.dense.schedule.decay", "linear", "--optimizer.dense.schedule.unit", "epochs"],
            "count in 'steps'",
        ),
    ],
)
def test_wrong_input_is_one_line(week, tmp_path, flags, message):
    error = train(week, tmp_path, *flags, code=2)
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out/checkpoints").exists()


def test_a_key_of_segments_without_a_path(rows, tmp_path):
    file = write_config(tmp_path / "config.toml", config(rows, data__segments={"follow": True}))
    done = run_trainer("train", file, "--out", tmp_path / "out")
    message = "data.segments.follow is set, but data.segments.path is not; set both or none"
    assert (done.returncode, done.stderr) == (2, f"error: configuration '{file}': {message}\n")
