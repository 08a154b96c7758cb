"""How far a job is: what it writes for its scheduler, and what is read of that and of its log."""

import json
import time
from dataclasses import replace
from datetime import datetime

import pytest

from trainer.core.progress import (
    ProgressFile,
    TrainingProgress,
    backlog_line,
    clock,
    of_log,
    read_progress,
    saved_line,
)

NOW = datetime(2026, 3, 4, 14, 5).timestamp()
REPORTED = TrainingProgress(
    step=400, last_step=2000, loss=0.5, samples_per_second=1234.4, end=NOW + 90, interval=0.1, time=NOW
)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The file that a scheduler has named."""
    file = tmp_path / "training.json"
    monkeypatch.setenv("TORCHX_PROGRESS_FILE", str(file))
    return file


def test_all_of_it_in_words():
    assert REPORTED.in_words(NOW) == "step 400/2,000, 1,234 samples/s, loss 0.50000, ETA 01:30"
    assert replace(REPORTED, saved_step=0).in_words(NOW).endswith(", ETA 01:30, nothing saved")
    saved = replace(REPORTED, saved_step=300, saved=NOW - 125, doing="the evaluation on validation")
    assert saved.in_words(NOW + 30) == (
        "step 400/2,000, in the evaluation on validation, 1,234 samples/s, loss 0.50000, ETA 01:00, "
        "saved step 300 (2 min ago)"
    )
    assert REPORTED.short(NOW) == "step 400/2,000, ETA 01:30"
    begun = TrainingProgress(step=300, last_step=2000, saved_step=300, time=NOW)
    assert begun.in_words(NOW) == "step 300/2,000, saved step 300"


@pytest.mark.parametrize(("interval", "bound"), [(0.1, 60), (10, 60), (100, 300)])
def test_no_progress_for_a_minute_and_three_intervals_is_told_with_its_time(interval, bound):
    reported = replace(REPORTED, interval=interval, saved_step=300, saved=NOW - 3600)
    assert not reported.stalled(NOW + bound)
    assert reported.stalled(NOW + bound + 1)
    later = NOW + 25 * 60
    assert reported.short(later) == "step 400/2,000, no progress since 14:05 (25 min)"
    assert reported.in_words(later) == (
        "step 400/2,000, no progress since 14:05 (25 min), loss 0.50000, saved step 300 (1 h ago)"
    )
    assert reported.fields(later)["stalled"]
    assert clock(NOW, NOW + 86400) == "2026-03-04 14:05"


def test_the_file_has_the_last_report_and_what_the_job_does_since(file):
    own = ProgressFile()
    own.step(1)
    assert read_progress(file) is None, "training has not begun"
    own.begin(TrainingProgress(step=300, last_step=2000, saved_step=300, saved=NOW, time=NOW), print)
    assert read_progress(file).in_words(NOW).startswith("step 300/2,000, ")
    own.report(REPORTED)
    assert read_progress(file) == replace(REPORTED, saved_step=300, saved=NOW)
    own.saved(400)
    found = read_progress(file)
    assert (found.saved_step, found.time) == (400, NOW), "a save in the background is no sign of the steps"
    assert found.saved == pytest.approx(time.time(), abs=60)
    own.step(401)
    assert read_progress(file).step == 400, "not more often than a sign of life needs"


def test_what_cannot_be_written_is_told_and_does_not_end_the_job(file, capsys):
    file.mkdir()
    own = ProgressFile()
    own.begin(TrainingProgress(step=0, last_step=2000, saved_step=0, time=NOW), print)
    assert f"{file} cannot be written to: " in capsys.readouterr().out
    file.rmdir()
    own.report(REPORTED)
    assert read_progress(file).step == 400


@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": 1}', json.dumps({"another": "version"})])
def test_what_is_no_progress_counts_as_none(file, content):
    file.write_text(content)
    assert read_progress(file) is None


@pytest.mark.parametrize("prefix", ["", "[rank 0] "])
def test_a_log_shows_as_much_as_the_file(prefix):
    details = "(617 per rank)  input stall 0.0%  step 1.0 ms (p99 1.0)  0.50 GiB  "
    lines = [
        (NOW - 100, f"{prefix}{replace(REPORTED, step=300).line(details)}"),
        (NOW - 50, f"{prefix}{saved_line(300)} runs/a/checkpoints/step-000000300 in 0.1 s"),
        (NOW, f"{prefix}{REPORTED.line(details)}\n"),
        (NOW + 20, f"{prefix}step 400  validation: auc 0.50000"),
        (NOW + 70, f"{prefix}rank 1 has been stuck for 60 s in the work after step 400, in all_reduce"),
    ]
    found = of_log(lines)
    expected = replace(REPORTED, samples_per_second=1234, interval=100, saved_step=300, saved=NOW - 50, time=NOW + 20)
    assert found == expected
    assert of_log(lines[1:2]) is None
    assert of_log([(NOW, replace(REPORTED, loss=None).line(details))]).loss is None


BEHIND = "2 segments and 1,240 records behind"


def test_how_far_it_is_behind_data_that_keeps_coming_is_shown_with_the_age_of_the_newest_event(file):
    own = ProgressFile()
    own.behind(f"segment 07, {BEHIND}", NOW - 41)  # the first segment is known before training begins
    own.begin(TrainingProgress(step=300, last_step=2000, saved_step=300, time=NOW), print)
    words = f"segment 07, {BEHIND}, newest event 41 s ago"
    assert read_progress(file).in_words(NOW) == f"step 300/2,000, {words}, saved step 300"
    assert read_progress(file).short(NOW) == f"step 300/2,000, {words}"
    own.behind("segment 07, 0 segments and 3 records behind", None)
    assert read_progress(file).short().startswith("step 300/2,000, segment 07, 0 segments and 3 records behind")
    own.begin(TrainingProgress(step=0, last_step=0, time=NOW), print)
    assert read_progress(file).in_words(NOW) == "segment 07, 0 segments and 3 records behind", "a job without steps"
    stalled = replace(REPORTED, backlog=f"segment 07, {BEHIND}", newest_event=NOW)
    assert stalled.short(NOW + 1500) == (
        f"step 400/2,000, no progress since 14:05 (25 min), segment 07, {BEHIND}, newest event 25 min ago"
    )


@pytest.mark.parametrize("prefix", ["", "[rank 0] "])
def test_a_log_shows_how_far_it_is_behind(prefix):
    first = (NOW - 10, prefix + backlog_line("07", "200 samples, steps 1 to 4", BEHIND, None))
    second = (NOW, prefix + backlog_line("08", "200 samples; 3 late", BEHIND, time.time() - 1300))
    report = (NOW - 5, f"{prefix}{REPORTED.line('0.50 GiB  ')}")
    expected = TrainingProgress(step=0, last_step=0, backlog=f"segment 07, {BEHIND}", time=NOW - 10)
    assert of_log([first]) == expected
    found = of_log([first, report, second])
    assert (found.step, found.backlog, found.time) == (400, f"segment 08, {BEHIND}", NOW)
    assert found.newest_event == pytest.approx(NOW - 1300, abs=1)
