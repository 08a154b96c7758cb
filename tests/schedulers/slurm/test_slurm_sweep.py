"""A sweep on a real Slurm."""

import json
import shutil

import curve
import pytest
import tomli_w
from slurm_shell import Shell

pytestmark = [pytest.mark.slurm, pytest.mark.more("sweeps are tested on local_cwd")]


def test_trials_run_and_are_stopped_early(clusters, tmp_path):
    shell = Shell(clusters(True), tmp_path)
    shutil.copy(curve.__file__, tmp_path)
    space = {"optimizer": {"dense": {"learning_rate": {"range": [0.0001, 1.0]}}}}
    tree = {
        **{"out": "out", "component": "curve.py:train", "trials": 5, "at_once": 2, "min_steps": 10, "space": space},
        "arguments": {"config": "movielens", "seconds": 0.5},
    }
    (tmp_path / "s.toml").write_text(tomli_w.dumps(tree))
    said = shell.torchx("sweep", "run", "s.toml", "-s", "slurm")
    done, early = said.count("  done at step 90"), said.count("  stopped early at step ")
    assert (done + early, done > 0, early > 0) == (5, True, True), said
    states = [*shell.listed().values()]
    assert (states.count("SUCCEEDED"), states.count("CANCELLED")) == (done, early)
    for number in range(5):
        lines = [json.loads(line) for line in (tmp_path / f"out/trials/{number}/evaluations.jsonl").open()]
        assert [line["step"] for line in lines] == [*range(10, lines[-1]["step"] + 1, 10)]
    assert (tmp_path / "out/best.toml").exists()
