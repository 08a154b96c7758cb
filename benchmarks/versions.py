"""Runs tests of every room with other versions of Python, torch, torchrec and fbgemm-gpu.

Writes docs/reference/versions.md.
Takes half an hour, 15 GB of disk, and python3.11 and python3.13 in PATH.

Each environment, below `.versions`, has the pins of requirements-cpu.txt, except for the three packages.
"""

import os
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from docs.generate import ROOT, table, write_measured

PAGE = ROOT / "docs/reference/versions.md"
ENVIRONMENTS = ROOT / ".versions"
TESTS = (  # tests of each room that are the first to fail with another version: tables, plans, checkpoints, exports
    *("tests/apps/test_export_names.py", "tests/apps/test_predict.py", "tests/checkpoint/test_checkpoint.py"),
    *("tests/config/test_config.py", "tests/batches/test_loader.py", "tests/metrics/test_binary.py"),
    *("tests/models/test_pooled_formulas.py", "tests/models/test_sequence_formulas.py", "tests/plan/test_make_plan.py"),
    *("tests/optim/test_optimizers.py", "tests/planner/test_rank_memory.py", "tests/releases"),
    *("tests/extensions/test_row_map.py", "tests/run/test_run_files.py", "tests/schedulers/test_dry_runs.py"),
    *("tests/training/test_custom.py", "tests/training/test_resume.py"),
)


@dataclass(frozen=True)
class Versions:
    """The versions of an environment."""

    python: str
    torch: str
    torchrec: str
    fbgemm: str

    @property
    def folder(self) -> Path:
        """The environment."""
        return ENVIRONMENTS / f"{self.python}-{self.torch}"


TRIED = (
    Versions("3.11", "2.13.0", "1.8.0", "1.8.0"),
    Versions("3.11", "2.14.1", "1.9.2", "1.9.0"),
    Versions("3.13", "2.14.1", "1.9.2", "1.9.0"),
)


def main() -> None:
    """Runs the tests in each environment, and rewrites the table."""
    rows = []
    for versions in TRIED:
        if not (versions.folder / "ready").exists():
            install(versions)
        rows.append([*vars(versions).values(), *map(str, run_tests(versions))])
    heads = ["Python", "torch", "torchrec", "fbgemm-gpu-cpu", "passed", "failed", "skipped"]
    write_measured(PAGE, "versions", f"{table(heads, rows)}\n\n{date.today()}, tests of every room.")


def install(versions: Versions) -> None:
    """Creates an environment with some versions, and the project of this checkout.

    The package index has torch's build for CUDA, which loads only with CUDA's libraries. So torch alone is installed
    with its dependencies.
    """
    triple = {"torch": versions.torch, "torchrec": versions.torchrec, "fbgemm_gpu-cpu": versions.fbgemm}
    pinned = (ROOT / "requirements-cpu.txt").read_text().splitlines()
    names = [line for line in pinned if line.partition("==")[0] not in triple]
    interpreter = shutil.which(f"python{versions.python}")
    if not interpreter:
        raise SystemExit(f"error: there is no python{versions.python} on PATH")
    subprocess.run([interpreter, "-m", "venv", versions.folder], check=True)
    (versions.folder / "pinned.txt").write_text("\n".join(names))
    for words in (
        ("--no-deps", "-r", str(versions.folder / "pinned.txt")),
        ("--no-deps", f"torchrec=={versions.torchrec}", f"fbgemm-gpu-cpu=={versions.fbgemm}"),
        (f"torch=={versions.torch}",),
        ("--no-deps", "--no-build-isolation", "--editable", str(ROOT)),
    ):
        subprocess.run([versions.folder / "bin" / "pip", "install", "--quiet", *words], check=True)
    (versions.folder / "ready").touch()


def run_tests(versions: Versions) -> tuple[int, int, int]:
    """Runs the tests in an environment; returns how many passed, failed and were skipped."""
    results = versions.folder / "results.xml"
    program = [versions.folder / "bin" / "python", "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile"]
    path = f"{versions.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    subprocess.run([*program, "-q", f"--junit-xml={results}", *TESTS], cwd=ROOT, env=os.environ | {"PATH": path})
    return count(results)


def count(results: Path) -> tuple[int, int, int]:
    """Returns how many tests of a file of results passed, failed and were skipped."""
    suite = ET.parse(results).getroot()[0]
    every, bad = int(suite.get("tests", 0)), int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    skipped = int(suite.get("skipped", 0))
    return every - bad - skipped, bad, skipped


if __name__ == "__main__":
    main()
