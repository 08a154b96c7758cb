"""Checks of this machine. Imports that are slow or may crash run in separate processes (probes.py)."""

import json
import platform
import re
import shutil
import signal
import sys
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points, requires, version

from packaging.requirements import Requirement
from packaging.version import Version
from torchx import plugins as torchx_plugins

from schedulers.doctor.diagnosis import Diagnosis, Level, answer, last_line, probe

PROJECT = "torchx-recsys"
LEAST_PYTHON = (3, 11)
LOAD_SECONDS = 120
STORAGE_SECONDS = 30
# The probe for the URL of each flag, the finding if all is well, and the remedy if not.
STORAGE_CHECKS = {
    "--out": ("writable", "writable", "choose a directory or bucket that you may write to"),
    "--storage": ("readable", "there", "check the name, the network and the credentials"),
}
TRIPLE = ("torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu")
RELEASES_APART = 5  # between the minor versions: torch 2.13 goes with torchrec and fbgemm-gpu 1.8, and so on
INSTALL = (
    "install a triple: pip install 'torchx-recsys[cpu]' && pip install --no-deps 'torchrec<1.10', "
    "or pip install 'torchx-recsys[cuda]'"
)


def python() -> list[Diagnosis]:
    """Checks the interpreter."""
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < LEAST_PYTHON:
        return [Diagnosis("Python", Level.WRONG, found, f"use Python {'.'.join(map(str, LEAST_PYTHON))} or newer")]
    return [Diagnosis("Python", Level.OK, found)]


def torchx() -> list[Diagnosis]:
    """Checks that a single distribution provides the package torchx, and that it is the nightly."""
    stable, nightly = _version("torchx"), _version("torchx-nightly")
    if stable and nightly:
        remedy = f"pip uninstall -y torchx torchx-nightly && pip install torchx-nightly=={nightly}"
        return [Diagnosis("TorchX", Level.WRONG, f"torchx {stable} and torchx-nightly {nightly} in one place", remedy)]
    if not nightly:
        remedy = "pip uninstall -y torchx && pip install torchx-recsys"
        return [Diagnosis("TorchX", Level.WRONG, f"torchx {stable}, which is too old", remedy)]
    return [Diagnosis("TorchX", Level.OK, f"torchx-nightly {nightly}")]


def plugins() -> list[Diagnosis]:
    """Checks this project's entry points in TorchX, and reports plugins that TorchX could not register."""
    ours = [entry for entry in distribution(PROJECT).entry_points if entry.group.startswith("torchx.")]
    broken = [f"{entry.name}: {error}" for entry in ours if (error := _load_error(entry))]
    broken += [f"{error.name}: {error.error}" for error in torchx_plugins.registry().load_errors()]
    taken = [entry.name for entry in ours if len(entry_points(group=entry.group, name=entry.name)) > 1]
    if broken or taken:
        found = "; ".join([*broken, *(f"{name} is registered by two packages" for name in taken)])
        return [
            Diagnosis("plugins", Level.WRONG, found, f"install {PROJECT} again; remove packages that clash with it")
        ]
    groups = ("schedulers", "components", "named_resources", "cli.cmds")
    counts = [f"{sum(entry.group == f'torchx.{group}' for entry in ours)} {group}" for group in groups]
    return [Diagnosis("plugins", Level.OK, ", ".join(counts))]


def torch() -> list[Diagnosis]:
    """Checks that torch, torchrec and fbgemm-gpu match and load, and which GPUs they see."""
    there = {name: number for name in TRIPLE if (number := _version(name))}
    versions = ", ".join(f"{name} {number}" for name, number in there.items())
    if "torch" not in there:
        return [Diagnosis("torch", Level.ABSENT, "not installed: jobs can be submitted here, not run"), _gpu(None)]
    if wrong := _mismatch(there):
        return [Diagnosis("torch", Level.WRONG, f"{versions}: {wrong}", INSTALL), _gpu(None)]
    loaded = probe("torch", seconds=LOAD_SECONDS)
    if loaded.returncode:
        died = f"died of {signal.Signals(-loaded.returncode).name}" if loaded.returncode < 0 else ""
        found = f"{versions} does not load: {died or last_line(loaded.stderr)}"
        return [Diagnosis("torch", Level.WRONG, found, INSTALL), _gpu(None)]
    return [Diagnosis("torch", Level.OK, versions), _gpu(json.loads(last_line(loaded.stdout)))]


def storage(flag: str, url: str) -> list[Diagnosis]:
    """Checks that a run directory is writable, by a temporary file, or that data exists."""
    script, good, remedy = STORAGE_CHECKS[flag]
    done = probe(script, url, seconds=STORAGE_SECONDS)
    if not done.returncode:
        return [Diagnosis(flag, Level.OK, f"{url} is {good}")]
    error = last_line(done.stderr)
    if missing := re.search(r"ImportError:.*[Ii]nstall (\w+)", error):
        remedy = f"pip install {missing[1]}"
    return [Diagnosis(flag, Level.WRONG, f"{url}: {error}", remedy)]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _mismatch(there: dict[str, str]) -> str | None:
    """Returns the fault of versions that do not match each other or the ranges of this project's extras."""
    if "fbgemm-gpu" in there and "fbgemm-gpu-cpu" in there:
        return "the two packages of fbgemm overwrite each other's files"
    fbgemm = "fbgemm-gpu" if "fbgemm-gpu" in there else "fbgemm-gpu-cpu"
    ranges = {found.name: found.specifier for found in map(Requirement, requires(PROJECT) or ())}
    wanted = [
        f"{name} {ranges[name]}"
        for name in ("torch", "torchrec", fbgemm)
        if name not in there or there[name] not in ranges[name]
    ]
    if wanted:
        return f"{', '.join(wanted)} wanted"
    release = Version(there["torch"]).minor - RELEASES_APART
    if {Version(there[name]).minor for name in ("torchrec", fbgemm)} != {release}:
        return f"torch {there['torch']} goes with torchrec 1.{release} and {fbgemm} 1.{release}"
    return None


def _load_error(entry: EntryPoint) -> str | None:
    try:
        entry.load()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _gpu(loaded: dict | None) -> Diagnosis:
    """Returns the GPUs that torch sees, or a note that only the driver sees some."""
    if loaded and loaded["gpus"]:
        names = loaded["gpus"]
        return Diagnosis("GPU", Level.OK, ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)))
    if loaded and shutil.which("nvidia-smi") and not answer(["nvidia-smi", "-L"], 20).returncode:
        remedy = "update the driver" if loaded["cuda"] else "pip install 'torchx-recsys[cuda]' in another environment"
        return Diagnosis("GPU", Level.NOTE, "the driver has a GPU that torch does not see", remedy)
    return Diagnosis("GPU", Level.ABSENT, "none: ranks on this machine use the CPU")
