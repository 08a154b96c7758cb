"""The Dockerfile as far as it can be checked where there is no Docker daemon: what it copies, pins and runs."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACES = [
    place
    for place in ("apps", "components", "pipelines", "planner", "schedulers", "sweeps", "trainer")
    if (ROOT / place).is_dir()
]


def ignored(name):
    return set((ROOT / name).read_text().split())


def copied():
    """The paths that are copied into the image."""
    return [path for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for path in line.split()[:-1]]


def test_what_it_copies_is_there_and_not_ignored():
    assert copied()
    assert [path for path in copied() if not (ROOT / path).exists()] == []
    assert set(copied()) & ignored(".dockerignore") == set()


def test_what_never_travels_with_a_workspace_never_gets_into_the_image():
    assert ignored(".torchxignore") <= ignored(".dockerignore")


def test_it_installs_what_the_makefile_and_the_extras_install():
    makefile = (ROOT / "Makefile").read_text()
    locked = "pip install --quiet --no-deps -r "
    assert f"{locked}requirements-cpu.txt" in makefile
    assert f"{locked}locked.txt" in DOCKERFILE
    assert f"pip install --quiet {' '.join(PROJECT['optional-dependencies']['cuda'])}" in DOCKERFILE


def test_its_label_has_the_version_of_the_project():
    assert f'org.opencontainers.image.version="{PROJECT["version"]}"' in DOCKERFILE


def test_what_it_leaves_out_of_the_locked_list_is_not_a_dependency():
    left_out = re.compile(re.search(r'grep -vE "(.*?)"', DOCKERFILE)[1])
    locked = (ROOT / "requirements-cpu.txt").read_text().splitlines()
    assert any(left_out.match(line) for line in locked)
    assert [name for name in PROJECT["dependencies"] if left_out.match(name)] == []


def test_extras_are_optional_and_what_is_installed_is_tried():
    (requirement,) = re.findall(r'pip install --quiet ("/src[^"]*")', DOCKERFILE)
    for extras, expected in (("", "/src"), ("s3,gcs", "/src[s3,gcs]")):
        done = subprocess.run(
            ["sh", "-c", f"echo {requirement}"], env={"EXTRAS": extras}, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected
    assert 'python -c "import torch, torchrec, fbgemm_gpu"' in DOCKERFILE


def test_it_does_not_run_as_root():
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.MULTILINE) == ["1000:1000"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built of what is copied into the image."""
    folder = tmp_path_factory.mktemp("copied")
    for name in copied():
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(*(folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Python of an environment that has the wheel, and this environment's packages without the project."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    wheel.extractall(site)
    (site / "packages.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # whose own .pth files are not read
    return folder / "bin" / "python"


def test_what_it_copies_is_enough_to_install_the_project(wheel):
    names = wheel.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {*PLACES}
    assert {
        "components/dlrm.py",
        "schedulers/jobset/scheduler.py",
        "schedulers/slurm/batch.sh",
        "trainer/config/presets/movielens.toml",
    } <= set(names)


BENCH = "error: bench is part of the project's checkout, not of the installed package; run it in the root of a checkout"


def test_bench_says_in_one_line_that_it_is_not_installed(installed, tmp_path):
    bench = [str(installed), "-m", "trainer", "bench", "training", "--out", "bench"]
    done = subprocess.run(bench, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{BENCH}\n")


def test_bench_says_so_through_torchx(installed, tmp_path):
    torchx = [str(installed), "-m", "torchx.cli.main", "run", "-s", "local_cwd", "tools.bench", "--out", "bench"]
    path = f"{installed.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(torchx, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode != 0
    assert BENCH in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
