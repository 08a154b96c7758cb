"""`--seeds`: a run for each seed, as jobs of their own where a scheduler has no arrays."""

import json

import pytest
from command import write_config
from jobs import config

from components import dlrm
from schedulers.contract import ARRAY


def test_the_app_has_a_role_for_each_seed():
    app = dlrm.data_parallel("--train.steps", "5", config="c.toml", out="runs/s", j="1x2", seeds=["4", "2"])
    assert ([role.name for role in app.roles], ARRAY in app.metadata) == (["seed-4", "seed-2"], True)
    for role, seed in zip(app.roles, (4, 2), strict=True):
        assert role.args[-1].endswith(f"--train.steps 5 --train.seed {seed}")
        assert f" --out runs/s/seed-{seed} " in role.args[-1]
    # A single seed is a job like any other.
    (role,) = dlrm.data_parallel(config="c.toml", out="runs/s", j="1x2", seeds=["4"]).roles
    assert role.name == "trainer"
    assert " --out runs/s/seed-4 " in role.args[-1]


@pytest.mark.few(4, "four stand for all")
@pytest.mark.parametrize("seeds", ["1,x", "1,1", "-1", "1,,2", "01"])
@pytest.mark.parametrize("scheduler", ["local_cwd", "slurm"])
def test_wrong_seeds_are_one_line(torchx, scheduler, seeds):
    done = torchx("run", "-s", scheduler, "dlrm.single_node", "--config", "c.toml", f"--seeds={seeds}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"torchx run: error: --seeds {seeds}: must be numbers from 0 up, each once, such as 1,2,3"
    )
    assert "launched" not in done.stderr


@pytest.mark.more("starts a job for each seed")
def test_each_is_a_job_and_one_that_fails_leaves_the_others_alone(torchx, rows, path, tmp_path):
    file = write_config(tmp_path / "config.toml", config(rows, train__steps=2))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/seed-1").write_text("in the way of a run directory")
    words = ("run", "dlrm.single_node", "--config", str(file), "--cpu", "1", "--out", str(tmp_path / "runs"))
    done = torchx(*words, "--seeds", "1,2,3", "--", "--train.seed", "9", PATH=path)
    assert done.returncode == 2, done.stderr
    assert done.stdout.count("local_cwd://") == 3
    for seed in (2, 3):
        assert json.loads((tmp_path / f"runs/seed-{seed}/run.json").read_text())["state"] == "finished"


@pytest.mark.more("a detail")
def test_where_runs_are_no_array_a_pipeline_says_so(torchx, tmp_path):
    arguments = {"config": "movielens", "seeds": ["1", "2"]}
    steps = {"train": {"component": "dlrm.single_node", "arguments": arguments}}
    write_config(tmp_path / "p.toml", {"out": "out", "steps": steps})
    done = torchx("pipeline", "run", "p.toml", "--dryrun")
    assert done.returncode == 2
    assert "only on Slurm are several runs one job" in done.stderr
    assert "Traceback" not in done.stderr
