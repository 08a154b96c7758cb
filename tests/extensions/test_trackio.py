"""Runs that are sent to Trackio: its files have each line of the run's files once."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from command import run_trainer, write_config
from jobs import config, write_rows
from tracked_lines import in_order, rows_of

pytestmark = [
    pytest.mark.skipif(find_spec("trackio") is None, reason="needs trackio, which .ci/run installs"),
    pytest.mark.more("another tracker has shown the promise"),
]
STEPS = 8
READ = """\
import json, trackio
from trackio.sqlite_storage import SQLiteStorage
runs = [*trackio.Api().runs("mine")]
history = {run.name: SQLiteStorage.get_logs("mine", run.name, run_id=run.id) for run in runs}
print(json.dumps([{"name": run.name, "config": run.config, "history": history[run.name]} for run in runs]))
"""


def kept(folder):
    """Returns the runs of the project, as Trackio's own client reads them."""
    environment = os.environ | {"TRACKIO_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_its_files_have_each_line_once_and_a_resume_goes_on_with_the_same_run(tmp_path):
    data, out, folder = write_rows(tmp_path / "data", [200]), tmp_path / "run", tmp_path / "kept"
    tree = config(data, train__steps=STEPS, evaluate={"every_steps": 3})
    tree["data"] |= {"validation": [str(data)]}
    tree["report"] |= {"trackers": ["trackio"], "trackio": {"project": "mine", "name": "first"}}
    settings = write_config(tmp_path / "mine.toml", tree)
    for steps in (STEPS // 2, STEPS):
        done = run_trainer("train", settings, "--out", out, "--train.steps", steps, TRACKIO_DIR=str(folder))
        assert done.returncode == 0, done.stdout + done.stderr
        # What a busy machine has not written within seconds of the end.
        assert run_trainer("track", "--out", out, TRACKIO_DIR=str(folder)).returncode == 0
    (run,) = kept(folder)
    assert run["name"] == f"first-{json.loads((out / 'tracker-trackio.json').read_text())['key'][:8]}"
    assert run["config"]["data.global_batch_size"] == "64"
    found = [
        {key: value for key, value in row.items() if "/" in key} | {"step": row["step"]}
        for row in run["history"]
        if any("/" in key for key in row)
    ]
    assert in_order(found) == rows_of(out)
    assert run["history"][-1]["run_directory"] == str(out)
