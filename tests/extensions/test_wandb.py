"""Runs that are sent to Weights & Biases: its offline files have each line of the run's files once."""

import json
from importlib.util import find_spec

import pytest
from command import run_trainer, write_config
from jobs import config, losses, write_rows
from tracked_lines import in_order, rows_of
from tracker_faults import nobody
from wandb_file import history, records

pytestmark = [
    pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb, which .ci/run installs"),
    pytest.mark.more("another tracker has shown the promise"),
]
STEPS = 8


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wandb")
    data = write_rows(folder / "data", [200])
    tree = config(data, train__steps=STEPS, evaluate={"every_steps": 3})
    tree["data"] |= {"validation": [str(data)]}
    tree["report"] |= {"trackers": ["wandb"], "wandb": {"project": "mine", "name": "first"}}
    return write_config(folder / "mine.toml", tree)


def written(out):
    """Returns the offline files of a run, oldest first."""
    return sorted(out.glob("wandb/offline-run-*/run-*.wandb"))


def check(out):
    rows = [row for file in written(out) for row in history(file)]
    ours = [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]
    assert in_order(ours) == rows_of(out)


def test_the_offline_files_have_each_line_once_and_a_resume_goes_on_with_the_same_run(settings, tmp_path):
    out = tmp_path / "run"
    for steps in (STEPS // 2, STEPS):
        done = run_trainer("train", settings, "--out", out, "--train.steps", steps, WANDB_MODE="offline")
        assert done.returncode == 0, done.stdout + done.stderr
        # What a busy machine has not written within seconds of the end.
        assert run_trainer("track", "--out", out, WANDB_MODE="offline").returncode == 0
    assert len(written(out)) >= 2
    check(out)
    runs = [
        record.run for file in written(out) for record in records(file) if record.WhichOneof("record_type") == "run"
    ]
    assert len({run.run_id for run in runs}) == 1
    assert {(run.project, run.display_name) for run in runs} == {("mine", "first")}
    keys = {one.key: one.value_json for one in runs[0].config.update}
    assert json.loads(keys["data.global_batch_size"]) == "64"


def test_a_server_that_is_gone_costs_one_line_and_the_rest_is_sent_later(settings, tmp_path):
    out = tmp_path / "run"
    with nobody() as uri:
        online = {"WANDB_BASE_URL": uri, "WANDB_API_KEY": "a" * 40, "WANDB_MODE": "online"}
        done = run_trainer("train", settings, "--out", out, **online)
    assert done.returncode == 0, done.stdout + done.stderr
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("wandb ")]
    assert told.endswith(f"python -m trainer track --out {out} sends what is left")
    assert "a" * 40 not in done.stdout + "".join(file.read_text() for file in out.glob("*.json"))
    assert len(losses(out)) == STEPS
    done = run_trainer("track", "--out", out, WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    check(out)
