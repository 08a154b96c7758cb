"""The Dockerfile as far as it can be checked where there is no Docker daemon: what it copies, pins and runs."""

import re
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from from_wheel import build_wheel
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PLACES = [place for place in ("components", "schedulers", "torchx_recsys", "trainer") if (ROOT / place).is_dir()]


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


def test_it_installs_what_the_lock_and_the_extras_install():
    assert "pip install --quiet --no-deps -r locked.txt" in DOCKERFILE
    (triple,) = re.findall(r"pip install --quiet (torch==.*)$", DOCKERFILE, re.MULTILINE)
    pinned = (ROOT / "requirements-cpu.txt").read_text().replace("_gpu-cpu==", "-gpu==").splitlines()
    assert {*triple.split()} <= {*pinned}
    allowed = {found.name: found.specifier for found in map(Requirement, PROJECT["optional-dependencies"]["cuda"])}
    assert all(number in allowed[name] for name, number in (one.split("==") for one in triple.split()))


def test_its_label_has_the_version_of_the_project():
    assert f'org.opencontainers.image.version="{PROJECT["version"]}"' in DOCKERFILE


def test_it_installs_the_part_of_the_lock_that_the_demo_installs():
    marker = "/make extras/,"
    assert f'RUN sed "{marker}\\$d" requirements-cpu.txt > locked.txt' in DOCKERFILE
    assert f'{marker}\\$$d" requirements-cpu.txt > $(VENV)/others.txt' in (ROOT / "Makefile").read_text()


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
    return build_wheel(tmp_path_factory.mktemp("copied"), copied())


def test_what_it_copies_is_enough_to_install_the_project(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    places = {name.partition("/")[0] for name in names if ".dist-info" not in name}
    assert places == {*PLACES, "torchx_recsys_home.pth", "apps"}
    # Names of the version before, without an __init__.py, which would hide a user's package `apps`.
    assert [name for name in names if name.startswith("apps/")] == ["apps/check_data/finding.py", "apps/export/load.py"]
    assert {
        "components/dlrm.py",
        "schedulers/jobset/scheduler.py",
        "schedulers/slurm/batch.sh",
        "trainer/config/presets/movielens.toml",
    } <= set(names)
