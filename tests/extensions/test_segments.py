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
from jobs import config, losses, write_rows
from trainer_process import Training, committed

from torchx_recsys.apps.runs.saved_tensors import read_tensors
from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory

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
        checkpoint__full_every=3,
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


AHEAD = ("--evaluate.every_samples", "128", "--evaluate.first_after", "200")


def test_data_that_lies_ahead_is_evaluated_on_every_so_many_samples(week, tmp_path):
    ahead = ("--data.validation", str(week / "day=wed"), *AHEAD, "--data.segments.skip", "wed")
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    train(week, tmp_path / "whole", *ahead)
    for _ in range(3):  # a job for each segment, of which one ends where an evaluation is due
        train(week, tmp_path / "parts", *ahead, most=1)
    whole, parts = (
        list(map(json.loads, (tmp_path / name / "out/evaluations.jsonl").open())) for name in ("whole", "parts")
    )
    assert [(line["step"], line["split"]) for line in whole] == [(4, "validation"), (6, "validation")]
    assert parts == whole
    assert [(line["segment"], line["before"]) for line in ledger(tmp_path / "whole/out")] == [
        *(("mon", None), ("thu", None), ("tue", None))
    ]
    shown = ("--data.segments.path", "None", "--split", "validation", "--checkpoint", "6")
    file = tmp_path / "whole/config.toml"
    done = run_trainer("evaluate", file, "--out", tmp_path / "whole/out", *shown, "--data.validation", week / "day=wed")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "whole/out/evaluation-validation.json").read_text()) == whole[1]


def test_a_target_on_data_that_lies_ahead_ends_the_run(week, tmp_path):
    ahead = ("--data.validation", str(week / "day=wed"), *AHEAD, "--data.segments.skip", "wed")
    printed = train(week, tmp_path, *ahead, "--train.stop_early.metric", "auc", "--train.stop_early.target", "0.01")
    assert "before 6: auc of data.validation is" in printed or "training ends early: auc of data.validation" in printed
    assert json.loads((tmp_path / "out/run.json").read_text())["step"] == 4


def ledger(out):
    return [json.loads(line) for line in (out / "segments.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(week, tmp_path_factory):
    """The directories of runs of the whole week, by the number of ranks; one has ids that come and go.

    And one of a week whose Thursday came late, when Monday had changed; `before` beside it is the run without those.
    """
    runs = {}
    for ranks in (1, 2, "managed", "late"):
        runs[ranks], settings = tmp_path_factory.mktemp("undisturbed") / "out", tree(week)
        if ranks == "managed":
            settings["data"]["sparse"] |= {"s0": {"rows": 40, "ids": "managed"}, "s1": {"rows": 300, "ids": "managed"}}
            settings["data"]["segments"]["forget_after"] = 1
        if ranks == "late":
            settings = tree(begin_without_thursday(week, runs[ranks].parent), changed="train", skip=["sun", "we?s"])
        file = write_config(runs[ranks].parent / "config.toml", settings)
        done = run_trainer("train", file, "--out", runs[ranks], ranks=2 if ranks == 2 else 0)
        assert done.returncode == 0, done.stderr
    return runs


def begin_without_thursday(week, folder):
    """Trains up to Tuesday; returns a week in which Thursday and a day to skip then came, and Monday changed."""
    mine = shutil.copytree(week, folder / "week")
    shutil.move(mine / "day=thu", folder / "thu")
    train(mine, folder, until="tue")
    shutil.move(folder / "thu", mine / "day=thu")
    write_rows(mine / "day=mon", [10], seed=9)
    write_rows(mine / "day=weds", [90], seed=9)
    shutil.copytree(folder / "out", folder / "before")
    return mine


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
    lines_of("metrics.jsonl"),
    lines_of("evaluations.jsonl"),
    lines_of("segments.jsonl"),
    lambda out: max(committed(out), default=0) if (out / "checkpoints").exists() else 0,
]
"""What tells how far a job is that is to be killed."""


@pytest.mark.few(1, "one stands for all")
@pytest.mark.sample(3)
@pytest.mark.parametrize("ranks", ["late", 1, "managed", 2])
@pytest.mark.parametrize("seed", range(10))
def test_whatever_is_killed_the_run_is_the_undisturbed_one(undisturbed, week, tmp_path, ranks, seed):
    dice, out, there = random.Random(f"{ranks} {seed}"), tmp_path / "out", undisturbed[ranks]
    file, before, processes = there.parent / "config.toml", there.parent / "before", 2 if ranks == 2 else 0
    if before.exists():
        shutil.copytree(before, out)
    for _ in range(2):
        reached = dice.choice(SIGNS)
        at = dice.randint(reached(before) + 1, reached(there))
        job = Training(file, out, ranks=processes)
        while job.process.poll() is None and reached(out) < at:
            pass
        job.kill()
    last = Training(file, out, ranks=processes)
    last.end()
    assert last.code == 0, last.output()
    for name in ("segments.jsonl", "evaluations.jsonl"):
        assert (out / name).read_text() == (there / name).read_text()
    assert losses(out) == losses(there)
    assert_same_weights(out, there)


def assert_same_weights(out, other):
    """Compares the last checkpoints of two runs bit for bit."""
    steps = {max(committed(run)) for run in (out, other)}
    assert len(steps) == 1
    here, there = (read_tensors(Checkpoints(RunDirectory(str(run))).url(*steps)) for run in (out, other))
    assert here.keys() == there.keys()
    for name, tensor in here.items():
        torch.testing.assert_close(tensor, there[name], rtol=0, atol=0, msg=name)


def test_a_watcher_ends_it_inside_a_segment_and_the_same_command_goes_on(undisturbed, week, tmp_path):
    settings = tree(week)
    settings["report"]["watchers"] = {"own_watchers:Stopper": {"rank": 0, "step": STEPS[-2] + 1}}
    file, out = write_config(tmp_path / "config.toml", settings), tmp_path / "out"
    assert run_trainer("train", file, "--out", out).returncode == 0
    facts = json.loads((out / "run.json").read_text())
    assert facts["state"] == "finished"
    assert facts["outcome"] == f"finished at step 9, before 10: step {STEPS[-2] + 1} was enough"
    assert [line["segment"] for line in ledger(out)] == [*SIZES][:-1]
    assert run_trainer("train", file, "--out", out).returncode == 0
    for name in ("segments.jsonl", "evaluations.jsonl"):
        assert (out / name).read_text() == (undisturbed[1] / name).read_text()
    assert losses(out) == losses(undisturbed[1])
    assert_same_weights(out, undisturbed[1])


def test_ids_that_the_segments_before_did_not_have_are_let_go(undisturbed, week):
    """At the end there are the ids of the last two segments, as all earlier ones went when the last began."""
    tensors = read_tensors(Checkpoints(RunDirectory(str(undisturbed["managed"]))).url(STEPS[-1]))
    data = [pq.read_table(week / f"day={name}")["s1"].to_pylist() for name in SIZES]
    there = set(tensors["managed.s1.ids"].tolist()) - {-1}
    assert there == {*data[-2], *data[-1]}
    used, evicted, overflowed = tensors["managed.s1.totals"].tolist()
    assert used == len(there)
    assert evicted > 0
    assert overflowed == 0


@pytest.mark.more("a detail")
def test_jobs_take_the_segments_in_turn(undisturbed, week, tmp_path):
    assert "segment mon: 200 samples, steps 1 to 4" in train(week, tmp_path, until="mon")
    assert "there is no segment after mon" in train(week, tmp_path, until="mon")
    assert len(ledger(tmp_path / "out")) == 1
    train(week, tmp_path, most=2)
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon", "thu", "tue"]
    train(week, tmp_path)
    assert ledger(tmp_path / "out") == ledger(undisturbed[1])


@pytest.mark.more("a detail")
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
    assert re.search(
        r"segment thu changed at \d{4}-.* UTC, less than 3,600 s ago", train(here, tmp_path, least_age_seconds=3600.0)
    )
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon"]
    os.utime(here / "day=thu/part-00.parquet", (4e9, 4e9))
    ahead = train(here, tmp_path, least_age_seconds=3600.0)
    assert f"segment thu has '{here}/day=thu/part-00.parquet' of 2096-10-02 07:06:40 UTC, which this machine's" in ahead
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
    assert "warning: segment thu came after a later segment was trained on; training goes on without it" in said
    assert "warning: segment tue came after" not in said
    assert "warning: the files of segment mon changed after it was trained on; training goes on without it" in said
    assert (tmp_path / "out/segments.jsonl").read_text() == before
    refused = train(here, tmp_path, code=2, changed="stop")
    assert refused == (
        "error: the files of segment mon changed after it was trained on; data.segments.changed = 'tell' goes on "
        "without it\n"
    )


def test_late_and_changed_segments_are_trained_on_once_if_asked_for(undisturbed):
    out, folder = undisturbed["late"], undisturbed["late"].parent
    lines = ledger(out)
    assert [(line["segment"], line["samples"], line["number"]) for line in lines] == [
        *(("mon", 200, 0), ("tue", 64, 1), ("mon", 110, 2), ("thu", 90, 3), ("wed", 150, 4)),
    ]
    assert lines[0]["fingerprint"] != lines[2]["fingerprint"]
    assert [line["before"]["samples"] for line in lines] == [line["samples"] for line in lines]
    more = shutil.copytree(out, folder / "more")
    done = run_trainer("train", folder / "config.toml", "--out", more)
    assert "there is no segment after wed" in done.stdout
    assert "warning" not in done.stdout
    assert ledger(more) == lines


@pytest.mark.more("a detail")
def test_a_late_segment_that_is_not_complete_holds_nothing_up(here, tmp_path):
    shutil.move(here / "day=mon", tmp_path / "mon")
    for day in here.iterdir():
        (day / "_SUCCESS").touch()
    train(here, tmp_path, until="thu")
    shutil.move(tmp_path / "mon", here / "day=mon")
    said = train(here, tmp_path, until="tue", marker="_SUCCESS", changed="train")
    what = "segment mon came after a later segment was trained on"
    assert f"warning: {what}, but it has no _SUCCESS; training goes on, and it is looked at again" in said
    (here / "day=mon/_SUCCESS").touch()
    assert f"{what}; it is trained on now" in train(here, tmp_path, marker="_SUCCESS", changed="train")
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["thu", "tue", "mon", "wed"]


@pytest.mark.more("a detail")
def test_a_segment_below_a_batch_is_passed_over_if_the_last_batch_is_dropped(here, tmp_path):
    shutil.rmtree(here / "day=mon")
    write_rows(here / "day=mon", [63])
    file = write_config(tmp_path / "config.toml", settings := tree(here))
    settings["data"]["last_batch"] = "drop"
    for until, told in (("thu", 1), ("wed", 0)):
        write_config(
            file, settings | {"data": settings["data"] | {"segments": settings["data"]["segments"] | {"until": until}}}
        )
        done = run_trainer("train", file, "--out", tmp_path / "out", ranks=2)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("segment mon has 63 samples, fewer than data.global_batch_size where") == told
    lines = [(line["segment"], line["samples"], line["step"]) for line in ledger(tmp_path / "out")]
    assert lines == [("mon", 0, 0), ("thu", 90, 1), ("tue", 64, 2), ("wed", 150, 4)]


@pytest.mark.more("a detail")
def test_files_written_again_are_no_change_and_emptied_ones_are_passed_over(here, tmp_path):
    train(here, tmp_path, until="thu")
    write_rows(here / "day=mon", [100, 100], seed=0)
    said = train(here, tmp_path, until="thu", changed="train")
    assert "changed" not in said
    for file in (here / "day=mon").iterdir():
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    for told in (1, 0):
        said = train(here, tmp_path, until="thu", changed="train")
        assert said.count("segment mon has no rows, and is passed over") == told
    assert [(line["segment"], line["samples"]) for line in ledger(tmp_path / "out")] == [
        *(("mon", 200), ("thu", 90), ("mon", 0)),
    ]


@pytest.mark.more("a rare fault")
def test_lost_lines_of_the_ledger_are_not_taken_for_late_segments(undisturbed, week, tmp_path):
    shutil.copytree(undisturbed[1], tmp_path / "out")
    file = tmp_path / "out/segments.jsonl"
    whole = file.read_text()
    file.write_text("".join(whole.splitlines(keepends=True)[1:]))
    assert "came after a later segment" not in train(week, tmp_path)  # its line follows from the checkpoint at its end
    assert file.read_text() == whole
    file.write_text("".join(whole.splitlines(keepends=True)[1:]))
    shutil.rmtree(tmp_path / "out/checkpoints/step-000000004")
    for step in (6, 7):  # of the deltas on it
        shutil.rmtree(tmp_path / f"out/checkpoints/step-{step:09d}", ignore_errors=True)
    refused = train(week, tmp_path, code=2, changed="train")
    assert "segments.jsonl' has 3 of 4 segments that the run was trained on" in refused
    assert refused.count("\n") == 1


def test_skipped_segments_are_left_out(undisturbed, week, tmp_path):
    said = train(week, tmp_path, skip=["t*", "not-there-yet"])
    assert said.count("data.segments.skip leaves out segments thu, tue") == 1
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon", "wed"]
    assert len((tmp_path / "out/evaluations.jsonl").read_text().splitlines()) == 2
    said = train(week, tmp_path, skip=["thu", "mon"], changed="train")
    back = "tools.rewind goes back to the end of a segment before"
    assert f"warning: data.segments.skip leaves out segment mon, already trained on; {back}" in said
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon", "wed", "tue"]


@pytest.mark.more("a detail")
def test_a_job_that_follows_ends_where_the_last_segment_is_skipped_or_empty(here, tmp_path):
    train(here, tmp_path, follow=True, until="thu", skip=["thu"])
    for file in (here / "day=tue").iterdir():
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    train(here, tmp_path, follow=True, until="tue")
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon", "thu", "tue"]


@pytest.mark.more("a rare fault")
def test_an_evaluation_before_a_kill_may_have_been_of_another_segment(here, tmp_path):
    """Of a segment that is then skipped, at the same step as that which is trained on in its place."""
    train(here, tmp_path, until="mon")
    file = tmp_path / "out/evaluations.jsonl"
    stale = json.loads(file.read_text().splitlines()[0]) | {"step": STEPS[0], "samples": 90}
    file.write_text(file.read_text() + json.dumps(stale) + "\n")
    train(here, tmp_path, until="tue", skip=["thu"])
    assert [line["before"]["samples"] for line in ledger(tmp_path / "out")] == [200, 64]


def test_checkpoints_at_the_ends_of_segments_stay(week, tmp_path):
    settings = tree(week) | {"checkpoint": {"every_steps": 1, "keep": {"newest": 1, "segments": 3}}}
    file = write_config(tmp_path / "config.toml", settings)
    done = run_trainer("train", file, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert committed(tmp_path / "out") == STEPS[1:]
    (tmp_path / "out/segments.jsonl").unlink()  # whose last line comes after the checkpoint
    listed = run_trainer("checkpoints", "--out", tmp_path / "out").stdout
    for name in ("thu", "tue", "wed"):
        assert f"end of segment {name}" in listed
    for step, name in zip(STEPS[1:], ("thu", "tue", "wed"), strict=True):
        file = tmp_path / f"out/checkpoints/step-{step:09}/state.json"
        state = json.loads(file.read_text())
        assert state.pop("ends") == name
        file.write_text(json.dumps(state))  # as saved before ends were marked
    unmarked = run_trainer("checkpoints", "--out", tmp_path / "out").stdout
    assert re.findall("end of segment .*", unmarked) == re.findall("end of segment .*", listed)


def test_a_segment_that_changes_under_way_is_refused(here, tmp_path):
    file = write_config(tmp_path / "config.toml", tree(here))
    job = Training(file, tmp_path / "out", ranks=0)
    job.wait_until(lambda: (tmp_path / "out").exists() and 3 in committed(tmp_path / "out"), seconds=60)
    job.kill()
    for step in committed(tmp_path / "out"):
        if step > 3:
            shutil.rmtree(tmp_path / f"out/checkpoints/step-{step:09d}")
    refused = train(here, tmp_path, code=2, skip=["m*"])
    assert "data.segments.skip leaves out segment mon, which is trained on up to step 3 of 4; tools.rewind" in refused
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
    assert ledger(tmp_path / "out") == ledger(undisturbed[2])  # wherever the files are


def test_a_job_that_follows_says_what_it_waits_for_and_takes_what_comes_late(here, tmp_path):
    for day in ("thu", "wed"):
        shutil.move(here / f"day={day}", tmp_path / day)
    settings = tree(here, follow=True, poll_seconds=0.2, changed="train", until="wed", least_files=2)
    job = Training(write_config(tmp_path / "config.toml", settings), tmp_path / "out", ranks=0)
    job.wait_until(lambda: "there is no segment after tue; waiting" in job.output(), seconds=100)
    shutil.move(tmp_path / "thu", here / "day=thu")
    job.wait_until(lambda: lines_of("segments.jsonl")(tmp_path / "out") == 3, seconds=100)
    os.replace(write_rows(tmp_path / "again", [10], seed=9) / "part-00.parquet", here / "day=mon/part-00.parquet")
    job.wait_until(lambda: lines_of("segments.jsonl")(tmp_path / "out") == 4, seconds=100)
    (here / "day=wed").mkdir()
    job.wait_until(lambda: "segment wed has 0 of at least 2 files; waiting" in job.output(), seconds=100)
    for file in (tmp_path / "wed").iterdir():
        os.replace(file, here / "day=wed" / file.name)
    job.end(100)
    assert [line["segment"] for line in ledger(tmp_path / "out")] == ["mon", "tue", "thu", "mon", "wed"]
    assert "warning" not in job.output()


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
        (
            ["--data.validation", "rows"],
            "data.validation is set, and so is data.segments.path, but evaluate.every_steps",
        ),
        (["--evaluate.every_samples", "9"], "evaluate.every_samples is set, and so is data.segments.path"),
        (["--evaluate.first_after", "9"], "evaluate.first_after is 9, but evaluate.every_samples and"),
        (["--evaluate.every_samples", "9", "--evaluate.every_steps", "9"], "evaluate.every_samples is 9; set one"),
        (
            ["--data.validation", "rows", "--evaluate.every_steps", "2", "--publish.metric", "auc"],
            "publish.metric is set, which needs metrics on each segment",
        ),
        (["--checkpoint.every_epochs", "1"], "checkpoint.every_epochs is 1, but data.segments.path is set, and a save"),
        (["--evaluate.every_epochs", "1"], "evaluate.every_epochs is 1, but data.segments.path is set, and segments"),
        (["--evaluate.at_saves", "true"], "evaluate.at_saves is true, but data.segments.path is set, and a save also"),
        (["--data.test", "rows"], "data.test is set, and so is data.segments.path"),
        (["--train.steps", "9"], "train.steps is set, and so is data.segments.path"),
        (["--train.epochs", "2"], "train.epochs is set, and so is data.segments.path"),
        (["--evaluate.every_steps", "2"], "evaluate.every_steps is set, and so is data.segments.path"),
        (["--data.segments.most", "0"], "data.segments.most is 0"),
        (["--data.segments.poll_seconds", "0"], "data.segments.poll_seconds"),
        (["--data.segments.changed", "again"], "data.segments.changed"),
        (["--data.segments.least_files", "0"], "data.segments.least_files"),
        (["--data.segments.skip", ""], "data.segments.skip"),
        (["--checkpoint.keep.segments", "-1"], "checkpoint.keep.segments is -1"),
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data__segments": {"follow": True}},
            "data.segments.follow is set, but data.segments.path is not; set both or none",
        ),
        (
            {"data__segments": {"skip": ["mon"]}},
            "data.segments.skip is set, but data.segments.path is not; set both or none",
        ),
        (
            {"checkpoint__keep": {"segments": 2}},
            "checkpoint.keep.segments is 2, but data.segments.path is not set; set both or none",
        ),
        (
            {"data__segments": {"path": "stream/{segment}.json", "marker": "_SUCCESS"}, "data__reader": "kafka"},
            "data.segments.marker is '_SUCCESS', but data.reader is 'kafka', with a file for each segment, which is",
        ),
        (
            {"data__segments": {"path": "stream/{segment}.json", "least_files": 2}, "data__reader": "kafka"},
            "data.segments.least_files is 2, but data.reader is 'kafka', with a file for each segment, which is",
        ),
    ],
)
def test_keys_of_segments_that_do_not_go_together(rows, tmp_path, changes, message):
    file = write_config(tmp_path / "config.toml", config(rows, **changes))
    done = run_trainer("train", file, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
