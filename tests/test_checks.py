"""Every check can fail: each refuses a fault that is planted in a copy of the project."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from shell import typed

ROOT = Path(__file__).parent.parent
LINT = "".join(re.findall(r"^(?:style|lint): .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE))
PLANTED = """# Planted

[page](nowhere.md), [anchor](files.md#nowhere), [object][nowhere.Nothing]
"""
FAULTS = {
    "ruff format --check .": {"torchx_recsys/planner/planted.py": '"""Planted."""\n\nx  =  1\n'},
    "ruff check .": {"torchx_recsys/planner/planted.py": '"""Planted."""\n\nimport os\n'},
    "pyrefly check": {"torchx_recsys/planner/planted.py": '"""Planted."""\n\nx: int = "text"\n'},
    "mkdocs build --strict": {"docs/guides/data.md": PLANTED},
}
REPORTED = {
    "ruff format --check .": ["planted.py"],
    "ruff check .": ["F401", "planted.py"],
    "pyrefly check": ["bad-assignment", "planted.py"],
    "mkdocs build --strict": ["nowhere.md", "files.md#nowhere", "nowhere.Nothing", "strict"],
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of what is checked."""
    folder = tmp_path_factory.mktemp("copy")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_every_command_of_make_lint_has_a_planted_fault():
    commands = [re.sub(r"^\t(\w+=\w+ )?|  #.*$", "", line) for line in LINT.splitlines()]
    assert commands == [*FAULTS]


@pytest.mark.more("the checks themselves, again")
@pytest.mark.slow
@pytest.mark.parametrize("command", FAULTS)
def test_a_check_refuses_a_planted_fault(copy, path, command):
    kept = {name: (copy / name).read_bytes() for name in FAULTS[command] if (copy / name).exists()}
    try:
        for name, text in FAULTS[command].items():
            (copy / name).write_text(text)
        environment = {**os.environ, "PATH": path, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(command.split(), cwd=copy, env=environment, capture_output=True, text=True)
    finally:
        for name in FAULTS[command]:
            (copy / name).write_bytes(kept[name]) if name in kept else (copy / name).unlink()
    assert done.returncode == 1
    for word in REPORTED[command]:
        assert word in done.stdout + done.stderr


@pytest.mark.parametrize("fails", ["apt-get install", "make extras", "pip", "npm", "make test", "make check"])
def test_continuous_integration_fails_with_each_of_its_commands(tmp_path, fails):
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci")
    program, _, word = fails.partition(" ")
    for name in ("apt-get", "make", "sudo", "pip", "npm"):
        last = f'case " $* " in *" {word or "install"} "*) exit 3; esac'
        (programs / name).write_text(
            f'#!/bin/sh\n{"exec env" if name == "sudo" else ":"} "$@"\n{last * (name == program)}\n'
        )
        (programs / name).chmod(0o755)
    variables = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", tmp_path / ".ci/run"], env=variables, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr


def test_a_command_of_the_documentation_that_fails_is_refused(tmp_path, path):
    with pytest.raises(AssertionError, match="planted"):
        typed("python -c 'import sys; sys.exit(\"planted\")'", tmp_path, PATH=path)
