"""The benchmark from end to end, on little data; what it finds is not judged here."""

import json
import subprocess
import sys

import pytest

from trainer.tools.bench import bench
from trainer.tools.bench.comparison import Comparison

SETTINGS = {"rows": 3000, "global_batch_size": 64, "steps": 3, "repeats": 1}
FLAGS = ["--rows", "3000", "--global-batch-size", "64", "--steps", "3", "--repeats", "1"]


@pytest.mark.parametrize(
    ("what", "targets"),
    [
        (
            "training",
            {
                ("loader, one core", "pyarrow, same columns"): 0.5,
                ("loader, one core", "a Python object per value"): None,
                ("training from Parquet", "training from memory"): 0.95,
                ("training from memory", "a loop written by hand"): 0.97,
            },
        ),
        (
            "checkpoint",
            {
                ("steps beside saves, a core to spare", "steps alone"): 1 / 1.1,
                ("saving, durable", "plain writing, durable"): 0.7,
                ("saving, durable", "plain writing, may be lost"): None,
                ("restoring, checksums too", "plain reading"): 0.7,
            },
        ),
    ],
)
def test_bench(tmp_path, what, targets):
    command = [sys.executable, "-m", "trainer", "bench", what, "--out", str(tmp_path), *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout

    written = json.loads((tmp_path / f"bench-{what}.json").read_text())
    assert written["settings"] == SETTINGS
    assert written["versions"]["torchrec"]
    assert written["machine"]["cores"] >= 1
    assert {(one["what"], one["baseline"]): one["target"] for one in written["comparisons"]} == targets
    for one in written["comparisons"]:
        assert len(one["measured"]) == len(one["compared"]) == 1
        assert min(*one["measured"], *one["compared"], one["ratio"]) > 0
    assert [(one["ranks"], len(one["seconds"])) for one in written.get("restores", [])] == [(1, 1), (2, 1), (4, 1)] * (
        what == "checkpoint"
    )
    assert not (tmp_path / "bench-run").exists()


def test_ratio_is_that_of_the_repeats():
    slow_machine_at_last = Comparison("a", "b", "rows/s", None, [10.0, 10.0, 1.0], [20.0, 20.0, 2.0])
    assert slow_machine_at_last.ratio == 0.5


def test_nothing_to_measure():
    with pytest.raises(ValueError, match="--repeats is 0; it must be 1 or more"):
        bench(repeats=0)
