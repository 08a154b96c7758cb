"""Jobs that train on chosen samples: the same losses on any number of ranks and after a resume, and evaluations."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from command import write_config
from jobs import config, launch_rounds, losses, write_rows

from trainer.__main__ import main as trainer

STEPS = 12
FILTER = [["s5", "<", 60], ["row_id", "not in", [3, 4, 5]]]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("select"), [200, 150, 90, 300])


def tree(data, **changes):
    select = {
        "filter": FILTER,
        "keep_negatives": 0.5,
        "files": 0.8,
        "mixture": {f"{data}/*-03.parquet": 1.5, f"{data}/part-01.parquet": 0.5},
    }
    fixed = {"train__steps": STEPS, "checkpoint__every_steps": 5, "data__validation": [str(data)]}
    metrics = {"evaluate__every_steps": STEPS}
    return config(data, **({"data__select": select} | fixed | metrics | changes))


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def job(name, **changes):
        return {"config": tree(data, **changes), "out": str(folder / name)}

    rounds = [
        (1, [job("one"), job("resumed", train__steps=5)]),
        (2, [job("two"), job("resumed"), job("all", data__select={})]),
    ]
    (folder / "output").write_text(launch_rounds(rounds, folder))
    return folder


def test_the_same_losses_on_two_ranks_and_after_a_resume_on_another_number(runs):
    one = losses(runs / "one")
    np.testing.assert_allclose(losses(runs / "two"), one, rtol=1e-5)
    np.testing.assert_allclose(losses(runs / "resumed"), one, rtol=1e-5)
    assert abs(np.array(losses(runs / "all")) - one).max() > 0.01


def test_an_evaluation_has_all_samples_that_meet_the_filter_and_no_others(runs, data):
    rows = [row for file in sorted(data.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    labels = [row["label"] for row in rows if row["s5"] < 60 and row["row_id"] not in (3, 4, 5)]
    found = json.loads((runs / "one" / "evaluations.jsonl").read_text().splitlines()[-1])
    assert found["samples"] == len(labels)
    assert found["label_rate"] == pytest.approx(np.mean(labels), abs=1e-6)
    assert (
        f"data.select: {len(labels)} samples of 740 rows in 4 files of data.validation" in (runs / "output").read_text()
    )


def test_another_choice_is_refused_on_resume(runs, data, tmp_path, capfd):
    changed = tree(data)
    changed["data"]["select"]["keep_negatives"] = 0.25
    assert trainer(["train", str(write_config(tmp_path / "c.toml", changed)), "--out", str(runs / "two")]) == 2
    error = capfd.readouterr().err
    assert "data.select.keep_negatives is 0.5 there and 0.25 here, and may not change when a run is resumed" in error


def test_a_wrong_choice_is_one_line_and_exit_code_2(data, tmp_path, capfd):
    wrong = tree(data, data__select={"filter": [["s5", "==", "DE"]]})
    assert trainer(["train", str(write_config(tmp_path / "c.toml", wrong)), "--out", str(tmp_path / "out")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert "compares column 's5' of type int32 with 'DE'; it must be a whole number" in error
    assert error.count("\n") == 1
    assert trainer(["train", "movielens", "--data.select.filter", "s5 < 3", "--out", str(tmp_path / "out")]) == 2
    assert "a condition is a column, a comparison and a value" in capfd.readouterr().err
