"""What `make` installs, and what it prints where the environment cannot be made."""

import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
    done = subprocess.run(["make", target, "PYTHON=./python", "UV="], cwd=tmp_path, capture_output=True, text=True)
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


# Each program of the environment notes the words that it was run with.
NOTING = """#!/bin/sh
[ "$1" = -c ] && exit 0
mkdir -p "$3/bin"
for name in pip python; do
    printf '#!/bin/sh\\necho %s "$@" >> noted\\n' "$name" > "$3/bin/$name"
    chmod +x "$3/bin/$name"
done
"""


@pytest.mark.parametrize("uv", [None, 0, 1], ids=["without uv", "with uv", "with uv that fails"])
def test_uv_installs_all_but_torch_and_pip_what_uv_cannot(tmp_path, uv):
    for name in ("Makefile", "requirements-cpu.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "python").write_text(NOTING)
    if uv is not None:
        (programs / "uv").write_text(f'#!/bin/sh\necho uv "$@" >> noted\nexit {uv}\n')
    for program in (tmp_path / "python", *programs.iterdir()):
        program.chmod(0o755)
    variables = os.environ | {"PATH": f"{programs}:/usr/bin:/bin", "MAKEFLAGS": ""}
    words = ["make", "extras", "PYTHON=./python", *(["UV="] if uv is None else [])]
    subprocess.run(words, cwd=tmp_path, env=variables, check=True, capture_output=True)
    noted = (tmp_path / "noted").read_text().splitlines()
    by = {None: ["pip"], 0: ["uv"], 1: ["uv", "pip"]}[uv]
    for part in ("others", "extras"):
        assert [line.split()[0] for line in noted if f"/{part}.txt" in line] == by
    assert [line.split()[0] for line in noted if " torch==" in line] == ["pip"]
    assert [line.split()[0] for line in noted if "--editable" in line] == ["pip"]
    parts = [_pinned((tmp_path / ".venv" / f"{part}.txt").read_text()) for part in ("others", "extras")]
    assert sorted(["torch", *parts[0], *parts[1]]) == sorted(_pinned((ROOT / "requirements-cpu.txt").read_text()))


def test_the_demo_installs_what_the_package_and_its_build_require():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    first, _ = (ROOT / "requirements-cpu.txt").read_text().split("make extras")
    todo = [(requirement, "") for requirement in project["dependencies"] + extras["cpu"] + extras["baselines"]]
    todo += [(name, "") for name in ("torchrec", "hatchling", "editables")]
    found = set()
    while todo:
        text, extra = todo.pop()
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if applies and name != "fbgemm-gpu" and (name, *requirement.extras) not in found:
            found.add((name, *requirement.extras))
            todo += [(each, extra) for each in requires(name) or () for extra in ("", *requirement.extras)]
    assert sorted({name for name, *_ in found}) == sorted(_pinned(first))


def _pinned(text: str) -> list[str]:
    return [canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", text, re.MULTILINE)]
