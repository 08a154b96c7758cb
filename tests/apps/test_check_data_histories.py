"""Histories with actions that are not before their row: planted in clean histories, found, each as itself."""

import numpy as np
import pyarrow as pa
import pytest
from checked_data import clean_data
from test_check_data import check, faults

NOW = 1_700_000_000


def histories():
    """Returns clean data with lists of earlier items and their times, oldest first, nulls among both."""
    made, random = clean_data(), np.random.default_rng(2)
    for split in made.splits:
        for columns in made.columns(split):
            rows = len(columns["label"])
            now = NOW + 60 * np.arange(rows)
            lengths = random.integers(0, 6, rows)
            at = [np.sort(time - random.integers(1, 9_000, n)).tolist() for time, n in zip(now, lengths, strict=True)]
            columns["now"] = pa.array(now)
            columns["at"] = pa.array([None if row % 50 == 3 else one for row, one in enumerate(at)])
            columns["seen"] = pa.array([random.integers(0, 200, n).tolist() for n in lengths])
    raw = {"rows": 2**31 - 1, "pooling": "raw"}
    of_items = {"rows": 200, "table": "item", "pooling": "none"}
    made.data["sparse"] |= {
        "item": of_items | {"max_ids": 1},
        "seen": of_items | {"max_ids": 9},
        "at": raw | {"max_ids": 9},
        "now": raw | {"max_ids": 1},
    }
    return made


def checked(made, folder):
    """Returns the report of these histories as hstu reads them."""
    tree = made.write(folder / "data")
    sequences = {"target": "item", "history": "seen", "history_times": "at", "target_time": "now"}
    tree["model"] = {"name": "hstu", "embedding_dim": 8, "over_layers": [8]} | sequences
    return check(folder, tree)


def late(every, seconds, split="train"):
    def plant(made):
        for columns in made.columns(split):
            now, at = columns["now"].to_pylist(), columns["at"].to_pylist()
            for row in range(0, len(now), every):
                at[row] = [*(at[row] or []), now[row] + seconds]
            columns["at"] = pa.array(at)

    return plant


def own(place):
    def plant(made):
        for columns in made.columns():
            lists = zip(columns["seen"].to_pylist(), columns["item"].to_pylist(), strict=True)
            columns["seen"] = pa.array([[*one[:place], item, *one[place:]] for one, item in lists])

    return plant


FAULTS = {
    "later actions": (late(20, 5), {("error", "late actions", "at", "train")}),
    "actions of the same second": (late(20, 0), {("warning", "late actions", "at", "train")}),
    "a few later actions": (late(900, 5, "test"), {("error", "late actions", "at", "test")}),
    "the own item last": (own(99), {("error", "own id in history", "seen", "train")}),
    "the own item first": (own(0), {("error", "own id in history", "seen", "train")}),
    "no fault": (lambda made: None, set()),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_no_other(tmp_path, name):
    plant, expected = FAULTS[name]
    made = histories()
    plant(made)
    report = checked(made, tmp_path)
    assert {one for one in faults(report) if one[1] in ("late actions", "own id in history")} == expected
    if name == "later actions":
        (finding,) = [one for one in report["findings"] if one["check"] == "late actions"]
        assert finding["found"] == "5 % of the rows have a time at or after now, up to 5 seconds after it"


def test_actions_that_training_leaves_out_are_a_note(tmp_path):
    made = histories()
    late(20, 5)(made)
    for name in ("seen", "at"):
        made.data["sparse"][name] |= {"times": "at", "before": "now"}
    report = checked(made, tmp_path)
    (finding,) = [one for one in report["findings"] if one["check"] == "late actions"]
    assert (finding["severity"], finding["column"]) == ("note", "at")
    assert finding["remedy"] == "data.sparse.at leaves these out; look at how the lists are made"
