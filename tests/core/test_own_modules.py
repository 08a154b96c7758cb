"""Names of ours in a user's directory: real interpreters find our modules, the user's own, and a workspace's copy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import write_config
from jobs import config

from trainer.core.own_modules import PACKAGES, ROOT, find_own_first, rename

pytestmark = pytest.mark.more("names that are ours, in a user's directory")

RAISES = "raise RuntimeError('not the project')\n"
OWN = """
from my_package.part import build_model as make
import schedulers, torchx_recsys, components
"""
PART = "from trainer.models.dlrm import dlrm as build_model\n"
# Ranks as hosts with GPUs have them, each a program of its own.
RANKS = "import sys; from trainer.torchrun import run_ranks; sys.exit(run_ranks(sys.argv[1:], None))"


def type_in(folder, *words, **environment):
    """Runs a command in a directory as a user's shell would, on the CPU."""
    programs = os.path.dirname(sys.executable)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    variables |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True)


def shadow(folder, *names):
    """Writes packages that cannot be imported."""
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(RAISES)


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": "."}])
def test_a_typed_command_is_ours_beside_names_of_ours(rows, tmp_path, variables):
    shadow(tmp_path, "components", "schedulers")
    file = write_config(tmp_path / "config.toml", config(rows))
    done = type_in(tmp_path, "python", "-m", "trainer", "check-data", file.name, **variables)
    assert done.returncode in (0, 1), done.stderr
    assert "of the project's checkout" not in done.stderr
    assert "Traceback" not in done.stderr
    assert "rows" in done.stdout


def test_a_job_of_two_ranks_is_ours_and_its_model_the_users(rows, tmp_path):
    shadow(tmp_path, *PACKAGES)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/part.py").write_text(PART)
    (tmp_path / "my_model.py").write_text(OWN)
    file = write_config(tmp_path / "config.toml", config(rows, model__name="my_model:make", train__steps=2))
    job = ("dlrm.single_node", "--config", file.name, "--nproc", "2", "--out", "out")
    done = type_in(tmp_path, "torchx", "run", "-s", "local_cwd", *job)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (tmp_path / "out/metrics.jsonl").read_text().count("\n") == 2


def test_a_workspace_that_has_a_copy_of_the_project_runs_the_copy(tmp_path):
    for name in PACKAGES:
        shutil.copytree(f"{ROOT}/{name}", tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    commands = tmp_path / "trainer/commands.py"
    commands.write_text(commands.read_text().replace("unknown command", "changed: unknown command"))
    said = "error: changed: unknown command 'tarin'"
    assert said in type_in(tmp_path, "python", "-P", "-m", "trainer", "tarin").stderr
    launched = ("python", "-P", "-m", "trainer.launch", "--nproc-per-node", "1", "-m", "trainer", "tarin")
    assert said in type_in(tmp_path, *launched).stderr


def test_ranks_that_are_programs_of_their_own_leave_the_directory_alone(tmp_path):
    shadow(tmp_path, *PACKAGES)
    ranks = ("--nproc-per-node", "1", "-m", "trainer", "tarin")
    done = type_in(tmp_path, "python", "-P", "-c", RANKS, *ranks)
    assert done.returncode == 2
    assert "error: unknown command 'tarin'; did you mean 'train'?" in done.stderr


def test_an_own_aim_of_a_sweep_is_found(rows, tmp_path):
    shadow(tmp_path, "components", "trainer")
    (tmp_path / "my_metric.py").write_text("raise ImportError('found and refused')\n")
    data = {"data__validation": [str(rows)], "evaluate__metrics": ["my_metric:Mine"], "evaluate__every_steps": 5}
    write_config(tmp_path / "config.toml", config(rows, **data))
    sweep = {"out": "sweep", "trials": 1, "aim": "my_metric:Mine", "arguments": {"config": "config.toml"}}
    write_config(tmp_path / "sweep.toml", sweep | {"space": {"model": {"embedding_dim": [8, 16]}}})
    done = type_in(tmp_path, "torchx", "sweep", "run", "--dryrun", "sweep.toml")
    assert "my_metric:Mine', which cannot be imported: found and refused" in done.stderr


def test_a_module_that_ours_hides_is_to_be_renamed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ROOT])
    shadow(tmp_path, "components")
    find_own_first()
    assert sys.path[-1] == os.path.realpath(Path.cwd())
    assert rename("components.mine") == (
        f"; 'components' is a package of torchx-recsys, which hides the one in '{tmp_path}': rename that"
    )
    assert rename("planner") == rename("my_model") == ""
