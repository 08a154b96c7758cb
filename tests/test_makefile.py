"""What `make` prints where the environment cannot be made."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
[ "$1" = -c ] && exit {old}
[ {venv} = 0 ] || exit 1
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "ERROR: no route to host" >&2\\nexit 1\\n' > "$3/bin/pip"
chmod +x "$3/bin/pip"
"""


@pytest.mark.parametrize("target", ["demo", "test"])
@pytest.mark.parametrize(
    ("old", "venv", "line"),
    [
        (1, 0, "error: ./python is not Python 3.11 or later; make PYTHON=python3.11 names another"),
        (0, 1, "error: install Python's venv (Debian: python3-venv)"),
        (0, 0, "error: check the network; pip's own variables name a proxy (HTTPS_PROXY) or another index"),
    ],
)
def test_the_first_error_has_what_to_do(tmp_path, target, old, venv, line):
    for name in ("Makefile", "requirements-cpu.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON.format(old=old, venv=venv))
    (tmp_path / "python").chmod(0o755)
    done = subprocess.run(["make", target, "PYTHON=./python"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    errors = [said for said in done.stderr.splitlines() if said.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(line)


def test_a_python_that_is_not_there(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements-cpu.txt").touch()
    (tmp_path / "pyproject.toml").touch()
    done = subprocess.run(["make", "test", "PYTHON=python3.0"], cwd=tmp_path, capture_output=True, text=True)
    assert "error: python3.0 is not Python 3.11 or later" in done.stderr
