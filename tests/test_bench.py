"""The benchmark from end to end, on little data; what it finds is not judged here."""

import json
import os
import subprocess
import sys

import pytest

from trainer.bench import Comparison, bench


def test_bench(tmp_path):
    command = [sys.executable, "-m", "trainer", "bench", "--out", str(tmp_path), "--rows", "3000"]
    command += ["--global-batch-size", "64", "--steps", "3", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout
    assert "training from Parquet" in done.stdout

    written = json.loads((tmp_path / "bench.json").read_text())
    assert written["settings"] == {"rows": 3000, "global_batch_size": 64, "steps": 3, "repeats": 2}
    assert written["versions"]["torchrec"]
    assert written["machine"]["cores"] >= 1
    pairs = {(one["what"], one["baseline"]): one for one in written["comparisons"]}
    assert {one["target"] for one in pairs.values()} == {0.5, None, 0.95, 0.97}
    assert len(pairs) == 4
    for one in pairs.values():
        assert len(one["measured"]) == len(one["compared"]) == 2
        assert min(*one["measured"], *one["compared"], one["ratio"]) > 0


def test_ratio_is_that_of_the_repeats():
    slow_machine_at_last = Comparison("a", "b", "rows/s", None, [10.0, 10.0, 1.0], [20.0, 20.0, 2.0])
    assert slow_machine_at_last.ratio == 0.5


def test_nothing_to_measure():
    with pytest.raises(ValueError, match="--repeats is 0; it must be 1 or more"):
        bench(repeats=0)
