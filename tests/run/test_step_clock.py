"""Ranges that libraries name are in traces, and are skipped while no trace is recorded."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.run import step_clock
from trainer.run.step_clock import named_range, skip_unrecorded_ranges


@pytest.fixture(autouse=True)
def skipping(monkeypatch):
    for name in ("__enter__", "__exit__"):
        monkeypatch.setattr(record_function, name, getattr(record_function, name))  # and back again
    skip_unrecorded_ranges()


def names(recorded):
    return {event.name for event in recorded.events()}


def test_a_range_is_in_the_trace_that_is_recorded():
    with profile(activities=[ProfilerActivity.CPU]) as recorded, named_range("mine"), record_function("theirs"):
        torch.ones(2)
    assert {"## mine ##", "theirs"} <= names(recorded)


def test_a_range_beside_all_traces_is_not_told_to_torch(monkeypatch):
    told = []
    monkeypatch.setattr(step_clock, "_enter_recorded", told.append)
    monkeypatch.setattr(step_clock, "_exit_recorded", told.append)
    with named_range("mine"), record_function("theirs"):
        pass
    assert told == []


def test_a_trace_may_begin_and_end_within_a_range():
    recorded, range_before, reused = (
        profile(activities=[ProfilerActivity.CPU]),
        named_range("before"),
        named_range("reused"),
    )
    with range_before:
        recorded.start()
        with reused:
            torch.ones(2)
        within = named_range("within")
        within.__enter__()
    recorded.stop()
    within.__exit__(None, None, None)
    with reused:
        pass
    assert "## reused ##" in names(recorded)
    assert "## before ##" not in names(recorded)


def test_an_error_leaves_a_range():
    with pytest.raises(ZeroDivisionError), profile(activities=[ProfilerActivity.CPU]), named_range("mine"):
        raise ZeroDivisionError
