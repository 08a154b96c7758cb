"""Measures how long `make demo` takes from nothing, by part, with pip and, where it is there, with uv.

Writes docs/explanation/performance.md.
Takes five minutes, and downloads 300 MB for each of six demos.

Each demo runs in a new clone of the last commit, without the caches of pip and uv.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date

from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from trainer.core.console import plural

PAGE = ROOT / "docs" / "explanation" / "performance.md"
PARTS = {"the environment": ".venv/ready", "the data": "data/movielens/summary.json", "training": "demo"}
WAYS = {"pip": ["UV="], "uv": []} if shutil.which("uv") else {"pip": []}
REPEATS = 3


def main() -> None:
    """Runs the demo again and again, and rewrites the table."""
    found = {way: [measure(words) for _ in range(REPEATS)] for way, words in WAYS.items()}
    write_measured(PAGE, "demo", render(found))


def measure(words: list[str]) -> list[tuple[float, float]]:
    """Runs the demo in a new clone.

    Args:
        words: More words for `make`.

    Returns:
        Seconds, and seconds of processors, by part.
    """
    path = os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if each != f"{sys.prefix}/bin")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", ROOT, f"{folder}/demo"], check=True)
        variables = {**os.environ, "PATH": path, "PIP_NO_CACHE_DIR": "1", "UV_CACHE_DIR": f"{folder}/uv"}
        found = []
        for target in PARTS.values():
            began, used = time.monotonic(), _processor_seconds()
            subprocess.run(
                ["make", *words, target], cwd=f"{folder}/demo", env=variables, check=True, capture_output=True
            )
            found.append((time.monotonic() - began, _processor_seconds() - used))
        return found


def _processor_seconds() -> float:
    """Returns the processor time of all processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def render(found: dict[str, list[list[tuple[float, float]]]]) -> str:
    """Returns the table, and the machine.

    Args:
        found: The parts of each demo, by the way of installing.
    """
    columns = [
        [statistics.median(parts[place][kind] for parts in demos) for place in range(len(PARTS))]
        for demos in found.values()
        for kind in (0, 1)
    ]
    rows = [[name, *(f"{column[place]:.1f}" for column in columns)] for place, name in enumerate(PARTS)]
    rows.append(["all", *(f"{sum(column):.1f}" for column in columns)])
    heads = [f"{way}, {kind}" for way in found for kind in ("seconds", "of processors")]
    machine = describe_machine()
    repeats = plural(len(next(iter(found.values()))), "demo")
    return (
        f"{table(['Part', *heads], rows)}\n\n"
        f"{date.today()}, medians of {repeats}; {machine['cores']} cores ({machine['processor']})."
    )


if __name__ == "__main__":
    main()
