"""A sweep on the stand-in for a Kubernetes cluster."""

import re
import shutil

import curve
import pytest
import tomli_w

pytestmark = pytest.mark.more("sweeps are tested on local_cwd")


@pytest.mark.sample(0)  # the same as here and on Slurm
def test_trials_run_and_are_stopped_early(cluster, quick, tmp_path):
    shutil.copy(curve.__file__, tmp_path)
    space = {"optimizer": {"dense": {"learning_rate": {"range": [0.0001, 1.0]}}}}
    tree = {
        **{"out": str(tmp_path / "out"), "component": "curve.py:train", "trials": 5, "at_once": 2, "min_steps": 10},
        "arguments": {"config": "movielens", "seconds": 0.5},
        "space": space,
    }
    (tmp_path / "s.toml").write_text(tomli_w.dumps(tree))
    said = quick("sweep", "run", "s.toml", "-s", "jobset")
    done, early = said.count("  done at step 90"), said.count("  stopped early at step ")
    assert (done + early, done > 0, early > 0) == (5, True, True), said
    assert sorted(re.findall(r"SUCCEEDED|CANCELLED", quick("list", "-s", "jobset"))) == [
        *(["CANCELLED"] * early),
        *(["SUCCEEDED"] * done),
    ]
