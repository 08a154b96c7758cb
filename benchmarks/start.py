"""Measures how long the demo takes from `torchx run` to its first step, by part.

Writes docs/explanation/performance.md.
Takes a minute.

Measured from outside, as a user sees it: a part ends when its effect is visible.
"""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
import torch

from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from trainer.core.console import plural

PAGE = ROOT / "docs" / "explanation" / "performance.md"
RANKS = (1, 2)
REPEATS = 5
POLL_SECONDS = 0.02  # shorter intervals would take a share of the cores
MOST_SECONDS = 600


@dataclass(frozen=True)
class Part:
    """A part of a start.

    Attributes:
        name: Its name.
        wall_seconds: Its duration.
        processor_seconds: Processor time of all processes of the job.
    """

    name: str
    wall_seconds: float
    processor_seconds: float


def main() -> None:
    """Starts the demo's job again and again, and rewrites the table."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            ranks: [measure("movielens", ranks, Path(folder, f"{ranks}-{number}")) for number in range(REPEATS)]
            for ranks in RANKS
        }
    write_measured(PAGE, "start", render(found))


def measure(config: str, ranks: int, out: Path) -> list[Part]:
    """Starts a job, and stops it after its first step.

    Args:
        config: The configuration, whose data has to be there.
        ranks: Ranks of the job, on this machine.
        out: The run directory.
    """
    words = ["torchx", "run", "-s", "local_cwd", "dlrm.multi_node", "--config", config, "-j", f"1x{ranks}"]
    words += ["--out", str(out), "--", "--report.interval_steps", "1", "--train.epochs", "1000"]
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as output,
        psutil.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT) as shell,
    ):
        ends: dict[str, Callable[[], bool]] = {
            "`torchx run` starts the launcher": lambda: _runs(shell, "trainer.launch"),
            "the launcher starts the ranks": lambda: _runs(shell, "rank 0"),
            "the ranks make the plan": (out / "plan.json").exists,
            "the ranks take the first step": lambda: _has_lines(out / "metrics.jsonl"),
        }
        marks = [(0.0, 0.0)]
        try:
            for name, has_come in ends.items():
                while not has_come():
                    if shell.poll() is not None or time.monotonic() > began + MOST_SECONDS:
                        output.seek(0)
                        raise RuntimeError(f"no sign that {name}: {output.read()[-3000:]}")
                    time.sleep(POLL_SECONDS)
                marks.append((time.monotonic() - began, _processor_seconds(shell)))
        finally:
            if shell.poll() is None:
                shell.terminate()
    return [
        Part(name, wall - earlier_wall, processor - earlier_processor)
        for name, ((earlier_wall, earlier_processor), (wall, processor)) in zip(ends, pairwise(marks), strict=True)
    ]


def _processes(shell: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [shell, *shell.children(recursive=True)]
    return []


def _runs(shell: psutil.Process, what: str) -> bool:
    for process in _processes(shell):
        with suppress(psutil.NoSuchProcess):
            if process.name() == what or what in process.cmdline():
                return True
    return False


def _has_lines(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _processor_seconds(shell: psutil.Process) -> float:
    """Returns the processor time of a process and all that it has started, as far as they were waited for."""
    total = 0.0
    for process in _processes(shell):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def render(found: dict[int, list[list[Part]]]) -> str:
    """Returns the table, and the machine.

    Args:
        found: The parts of each start, by ranks.
    """
    names = [part.name for part in next(iter(found.values()))[0]]
    columns = [
        [statistics.median(getattr(parts[place], kind) for parts in starts) for place in range(len(names))]
        for starts in found.values()
        for kind in ("wall_seconds", "processor_seconds")
    ]
    rows = [[name, *(f"{column[place]:.2f}" for column in columns)] for place, name in enumerate(names)]
    rows.append(["all", *(f"{sum(column):.2f}" for column in columns)])
    heads = [f"{plural(ranks, 'rank')}, {kind}" for ranks in found for kind in ("seconds", "of processors")]
    machine = describe_machine()
    repeats = len(next(iter(found.values())))
    return (
        f"{table(['Until', *heads], rows)}\n\n"
        f"MovieLens; medians of {repeats} starts; {machine['cores']} cores ({machine['processor']}), torch "
        f"{torch.__version__}."
    )


if __name__ == "__main__":
    main()
