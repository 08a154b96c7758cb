"""Answers of exported models in a process that can import neither the trainer nor what it is made of."""

import json
import subprocess
import sys
import sysconfig
import tempfile
import venv
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from trainer.__main__ import main as trainer

ASK = """
import importlib.util, json, os, pathlib, sys, traceback
sys.dont_write_bytecode = True

def answer(given):
    for name in given["without"]:
        sys.modules[name] = None
    models, answers = {}, []
    for directory, columns in given["questions"]:
        if directory not in models:
            spec = importlib.util.spec_from_file_location("load", pathlib.Path(directory, "load.py"))
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            models[directory] = module.load(compiled=given["compiled"], verify=True)
        answers.append({name: value.tolist() for name, value in models[directory](columns).items()})
    return answers

for name in ("torchrec", "fbgemm_gpu", "trainer", "pyarrow"):
    sys.modules[name] = None
if "torch" in sys.argv:
    import torch
for line in sys.stdin:
    if os.fork() == 0:  # what a question changes does not reach the next
        given = json.loads(line)
        try:
            found = answer(given)
        except BaseException:
            found = traceback.format_exc()
        pathlib.Path(given["to"]).write_text(json.dumps(found))
        os._exit(0)
    os.wait()
    print(flush=True)
"""


TORCH_ALONE, ONNX_ALONE = ("numpy", "onnxruntime", "onnx"), ("torch", "onnx")
"""What a process is without that has torch alone, or NumPy and onnxruntime alone."""


def ask(
    *questions: tuple[Path, dict],
    python: str = sys.executable,
    compiled: bool = False,
    without: tuple[str, ...] = TORCH_ALONE,
) -> list[dict]:
    """Returns the outputs of exported models, each a directory, for columns."""
    given = {"compiled": compiled, "without": without}
    given["questions"] = [(str(directory), columns) for directory, columns in questions]
    process = _asked(python, "torch" not in without)
    with tempfile.NamedTemporaryFile("r") as answers:
        process.stdin.write(json.dumps(given | {"to": answers.name}) + "\n")
        process.stdin.flush()
        assert process.stdout.readline(), "the process that answers has ended"
        found = json.load(answers)
    assert not isinstance(found, str), found
    return found


@cache
def _asked(python: str, with_torch: bool) -> subprocess.Popen:
    """Returns a process that answers questions, each in a fork, so that torch is imported only once."""
    words = [python, "-I", "-c", ASK, *(["torch"] if with_torch else [])]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def export(runs: Path, name: str, to: Path, *flags: object) -> Path:
    """Exports a run and returns the directory."""
    words = ["export", runs / name / "config.toml", "--out", runs / name, "--to", to, *flags]
    assert trainer([str(word) for word in words]) == 0
    return step_directory(to)


def step_directory(to: Path) -> Path:
    """Returns the directory that current.json names."""
    return to / json.loads((to / "current.json").read_text())["directory"]


def parity_of(directory: Path) -> dict:
    """Returns the parity rows and their answers."""
    return json.loads((directory / "parity.json").read_text())


def first_rows(columns: dict, rows: slice) -> dict:
    """Returns some rows of columns."""
    return {name: values[rows] for name, values in columns.items()}


def environment_with(package: str, folder: Path) -> str:
    """Makes an environment that holds a package and what it requires, and nothing else; returns its Python.

    The packages are links to those of this environment, as torch is a gigabyte to install, and its wheel for CUDA four.
    """
    venv.create(folder)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    required: set[str] = set()
    require(package, required)
    # By their names, as CUDA's packages share the directory nvidia.
    entries = {
        file.parts[0]: distribution(name).locate_file(file.parts[0])
        for name in required
        for file in distribution(name).files or ()
    }
    for entry in entries.keys() - {"..", "__pycache__"}:
        (site / entry).symlink_to(entries[entry])
    return str(folder / "bin/python")


def require(package: str, found: set[str]) -> None:
    """Adds a package to those found, and the packages that it requires, as far as they are installed."""
    try:
        needed = distribution(package).requires or []
    except PackageNotFoundError:  # of CUDA
        return
    if package in found:
        return
    found.add(package)
    for line in needed:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            require(requirement.name, found)
