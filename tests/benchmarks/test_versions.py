"""The versions that are tried are those that the project allows, and their results are counted."""

import subprocess
import sys
import tomllib

from packaging.requirements import Requirement

from benchmarks.versions import TESTS, TRIED, count
from docs.generate import ROOT

FOUR = """import pytest
def test_passes(): pass
def test_fails(): assert False
@pytest.fixture
def broken(): raise OSError
def test_has_an_error(broken): pass
@pytest.mark.skip
def test_is_skipped(): pass
"""


def test_results_are_counted(tmp_path):
    (tmp_path / "test_four.py").write_text(FOUR)
    words = [sys.executable, "-m", "pytest", "--junit-xml=results.xml", "test_four.py"]
    subprocess.run(words, cwd=tmp_path, capture_output=True)
    assert count(tmp_path / "results.xml") == (1, 2, 1)


def test_versions_are_allowed_and_the_first_are_pinned():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ranges = {found.name: found.specifier for found in map(Requirement, extras["cuda"] + extras["cpu"])}
    for versions in TRIED:
        assert versions.torch in ranges["torch"]
        assert versions.torchrec in ranges["torchrec"]
        assert versions.fbgemm in ranges["fbgemm-gpu-cpu"]
    pinned = (ROOT / "requirements-cpu.txt").read_text().splitlines()
    first = TRIED[0]
    assert {f"torch=={first.torch}", f"torchrec=={first.torchrec}", f"fbgemm_gpu-cpu=={first.fbgemm}"} <= {*pinned}


def test_what_is_tried_is_there():
    assert [name for name in TESTS if not (ROOT / name).exists()] == []
