"""Names of ours in a user's directory: real interpreters find our modules, the user's own, and a workspace's copy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import write_config
from from_wheel import build_wheel, install_wheel
from jobs import config

from trainer.core.own_modules import PACKAGES, ROOT, find_own_first, rename

pytestmark = pytest.mark.more("names that are ours, in a user's directory")

PROGRAMS = Path(sys.executable).parent
RAISES = "raise RuntimeError('not the project')\n"
# What the user's own model may import, and nobody before it.
USERS = ("planner.py", "apps/__init__.py", "pipelines/__init__.py", "sweeps/__init__.py")
USERS_ALONE = f"import sys\nWHOSE = 'mine'\nif 'my_model' not in sys.modules: {RAISES}"
OWN = """
import apps, pipelines, planner, sweeps
from my_package.part import build_model as make
import schedulers, torchx_recsys, components
assert {apps.WHOSE, pipelines.WHOSE, planner.WHOSE, sweeps.WHOSE} == {"mine"}
"""
COMMANDS = (
    "python -m trainer check-data config.toml || [ $? = 1 ]",  # 1: it has findings
    "torchx run -s local_cwd dlrm.single_node --config config.toml --nproc 2 --out out",
    "torchx pipeline run --dryrun pipeline.toml",
    "torchx sweep run --dryrun sweep.toml",
    "python -P -m trainer predict out --source {rows} --to predicted",
    "python -P -m trainer export out --to exported",
    "python -P -c 'from torchx_recsys import load; import sys; print(callable(load(*sys.argv[1:])))' exported/step-*",
)
PART = "from trainer.models.dlrm import dlrm as build_model\n"
# Ranks as hosts with GPUs have them, each a program of its own.
RANKS = "import sys; from trainer.run_ranks import run_ranks; sys.exit(run_ranks(sys.argv[1:], None))"


def type_in(folder, *words, programs=PROGRAMS, **environment):
    """Runs a command in a directory as a user's shell would, on the CPU."""
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


@pytest.fixture(scope="module", params=["checkout", "wheel"])
def place(request, tmp_path_factory):
    """The programs of a checkout, or of an environment that has the wheel alone."""
    if request.param == "checkout":
        return PROGRAMS
    if not request.config.getoption("all"):
        pytest.skip("--all: the same from the wheel")
    wheel = build_wheel(tmp_path_factory.mktemp("built"), ["pyproject.toml", "README.md", "LICENSE", *PACKAGES])
    return install_wheel(wheel, tmp_path_factory.mktemp("installed"))


def test_a_repository_with_names_of_ours_is_ours_where_we_look_and_the_users_where_its_model_does(
    rows, tmp_path, place
):
    shadow(tmp_path, *PACKAGES)
    for name in USERS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(USERS_ALONE)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package/part.py").write_text(PART)
    (tmp_path / "my_model.py").write_text(OWN)
    data = {"data__validation": [str(rows)], "evaluate__every_steps": 2}
    write_config(tmp_path / "config.toml", config(rows, model__name="my_model:make", train__steps=2, **data))
    training = {"component": "dlrm.single_node", "arguments": {"config": "config.toml", "out": "piped"}}
    write_config(tmp_path / "pipeline.toml", {"out": "pipeline", "steps": {"train": training}})
    sweep = {"out": "sweep", "trials": 1, "aim": "auc", "arguments": {"config": "config.toml"}}
    write_config(tmp_path / "sweep.toml", sweep | {"space": {"model": {"embedding_dim": [8, 16]}}})
    for command in COMMANDS:
        done = type_in(tmp_path, "bash", "-c", command.replace("{rows}", str(rows)), programs=place)
        assert done.returncode == 0, f"$ {command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert done.stdout == "True\n"
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
