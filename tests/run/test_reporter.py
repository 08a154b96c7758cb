"""The reporter alone: lines of metrics.jsonl and evaluations.jsonl, and of the console."""

import json
import re

import pytest
import torch

from trainer.config.train import ReportConfig
from trainer.core.distributed import process_group
from trainer.core.run_directory import RunDirectory
from trainer.run.reporter import Reporter, StallTimer, format_metrics

ROWS = 64


@pytest.fixture
def start(tmp_path):
    """Starts a reporter on the same run directory every time."""
    run = RunDirectory(str(tmp_path / "run"))
    run.create()
    with process_group() as context:

        def start(last_step=5, start_step=0, running=None, interval_steps=2):
            config = ReportConfig(interval_steps=interval_steps, tensorboard=False)
            return Reporter(run, config, context, last_step, start_step, running)

        yield start


def take(reporter, *steps):
    """Reports steps whose loss is ten times their number, two to an epoch."""
    for step in steps:
        reporter.step(step, (step - 1) // 2, {"loss": torch.tensor(10.0 * step)}, ROWS, 0.0)


@pytest.fixture
def lines(tmp_path):
    """Reads a file of the run directory."""
    return lambda name: [json.loads(line) for line in (tmp_path / "run" / name).read_text().splitlines()]


def losses(records):
    return {record["step"]: record["loss"] for record in records}


def test_a_line_per_interval_has_the_mean_loss(start, lines):
    take(start(), 1, 2, 3, 4, 5)
    records = lines("metrics.jsonl")
    assert losses(records) == {2: 15.0, 4: 35.0, 5: 50.0}
    assert [record["epoch"] for record in records] == [0, 1, 2]
    for record in records:
        assert record["samples_per_second"] == record["samples_per_second_per_rank"] > 0
        assert 0 < record["step_seconds_p50"] <= record["step_seconds_p99"]
        assert record["data_wait"] == 0
        assert record["memory_gib"] > 0


def test_a_resumed_interval_keeps_the_losses_before_it(start, lines):
    first = start()
    take(first, 1, 2, 3)
    state = first.state()
    assert state == {"loss": 30.0, "steps": 1}
    take(first, 4, 5)
    take(start(start_step=3, running=state), 4, 5)
    assert losses(lines("metrics.jsonl")) == {2: 15.0, 4: 35.0, 5: 50.0}


def test_lines_of_later_steps_are_dropped_on_resume(start, lines):
    take(start(), 1, 2, 3, 4, 5)
    start(start_step=2)
    assert losses(lines("metrics.jsonl")) == {2: 15.0}


def test_evaluations_are_kept_on_resume_except_those_to_come(start, lines):
    reporter = start()
    for step, split in ((2, "validation"), (5, "validation"), (5, "test")):
        reporter.evaluation(step, split, {"auc": 0.5})
    assert [record["step"] for record in reporter.evaluations()] == [2, 5, 5]
    start(start_step=4)
    assert lines("evaluations.jsonl") == [{"step": 2, "split": "validation", "auc": 0.5}]
    start().evaluation(5, "test", {"auc": 0.6})
    resumed_at_the_end = start(start_step=5)  # evaluates its last step again
    assert resumed_at_the_end.evaluations() == []


def test_console_lines(start, capsys):
    reporter = start()
    take(reporter, 1, 2)
    reporter.evaluation(2, "validation", {"auc": 0.5, "auc_error": 0.1, "samples": 1234.0})
    progress, evaluation = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"step 2/5  loss 15\.00000  [\d,]+ samples/s \([\d,]+ per rank\)  input stall 0\.0%  "
        r"step [\d,.]+ ms \(p99 [\d,.]+\)  \d+\.\d\d GiB  ETA \d\d:\d\d",
        progress,
    )
    assert evaluation == "step 2  validation: auc 0.50000  samples 1,234"


def test_an_interval_of_skipped_steps_has_no_loss(start, lines, capsys):
    reporter = start(last_step=6)
    take(reporter, 1)
    for step in (2, 3, 4):
        reporter.step(step, 0, {}, ROWS, 0.0)
    take(reporter, 5, 6)
    assert losses(lines("metrics.jsonl")) == {2: 10.0, 4: None, 6: 55.0}
    assert "step 4/6  loss -  " in capsys.readouterr().out.splitlines()[1]


def test_metrics_of_several_labels_on_one_line():
    found = format_metrics({"auc/click": 0.75, "auc_error/click": 0.1, "log_loss/buy": 0.5, "samples": 10.0})
    assert found == "auc/click 0.75000  log_loss/buy 0.50000  samples 10"


def test_lines_follow_when_storage_comes_back(start, lines, tmp_path, capsys):
    reporter = start(interval_steps=1)
    take(reporter, 1)
    (tmp_path / "run").rename(tmp_path / "away")
    take(reporter, 2)
    assert f"{tmp_path}/run cannot be written to: " in capsys.readouterr().out
    (tmp_path / "away").rename(tmp_path / "run")
    take(reporter, 3)
    reporter.flush()
    assert losses(lines("metrics.jsonl")) == {1: 10.0, 2: 20.0, 3: 30.0}


def test_the_stall_timer_passes_every_item_on():
    timer = StallTimer(iter("abc"))
    assert list(timer) == ["a", "b", "c"]
    assert timer.stalled_seconds > 0
