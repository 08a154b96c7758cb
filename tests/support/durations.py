"""What each file of tests takes: recorded by `make durations`, and used to begin with the longest file.

A file's tests of `make test-more` are recorded apart from those of `make test`, under the name of the file and ` more`.
"""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

TESTS = Path(__file__).parents[1]
FILE = TESTS / "durations.json"
"""For each file seconds and processor seconds; a number alone is the seconds of all its tests."""


def part_of(item: pytest.Item) -> str:
    """Returns the name under which the time of a test is recorded."""
    return item.path.name + (" more" if item.get_closest_marker("more") else "")


def sort_longest_first(items: list[pytest.Item]) -> None:
    """Sorts tests by the recorded duration of their file, unknown ones as if they took the average.

    A long file that began last would leave the other workers idle. pytest-split would only cut the suite into parts by
    durations, and xdist's worksteal would set up the fixtures of a module on several workers.
    """
    known = {part: taken if isinstance(taken, int) else taken[0] for part, taken in _read().items()}
    average = sum(known.values()) / len(known)
    parts = defaultdict(set)
    for item in items:
        parts[item.path].add(part_of(item))
    seconds = {
        path: sum(known.get(part, known.get(path.name, average)) for part in found) for path, found in parts.items()
    }
    items.sort(key=lambda item: -seconds[item.path])


class Recorder:
    """Measures the files that this process or its workers run, and writes the file when all have ended."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._taken: dict[str, list[float]] = defaultdict(lambda: [0, 0])
        self._began: tuple[float, float] | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Measures at the borders between files alone: to visit all processes takes milliseconds."""
        self._began = self._began or _spent()
        result = yield
        if not nextitem or part_of(nextitem) != part_of(item):
            taken = self._taken[part_of(item)]
            taken[:] = [sum(values) - began for *values, began in zip(taken, _spent(), self._began, strict=True)]
            self._began = None
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        """Takes over what a worker of xdist has measured."""
        for part, taken in getattr(node, "workeroutput", {}).get("taken", {}).items():
            self._taken[part] = [sum(values) for values in zip(self._taken[part], taken, strict=True)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Hands the figures to xdist's controller, or writes them beside those of files that did not run."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["taken"] = dict(self._taken)
            return
        measured = {part: [round(number) for number in taken] for part, taken in self._taken.items()}
        ran = {part.split()[0] for part in measured}
        kept = {part: taken for part, taken in _read().items() if part in measured or part.split()[0] not in ran}
        there = {path.name for path in TESTS.rglob("test_*.py")}
        lines = [
            f" {json.dumps(part)}: {json.dumps(taken)}"
            for part, taken in sorted((kept | measured).items())
            if part.split()[0] in there
        ]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _read() -> dict:
    return json.loads(FILE.read_text())


def _spent() -> tuple[float, float]:
    """Returns the time, and the processor seconds of this process and of all that it has started.

    `os.times` would leave out processes that still run, such as the one from which all trainers are forked (forked.py).
    A process that outlives its parent is left out here, too.
    """
    this, seconds = psutil.Process(), 0.0
    for process in [this, *this.children(recursive=True)]:
        with suppress(psutil.Error):
            used = process.cpu_times()
            seconds += used.user + used.system + used.children_user + used.children_system
    return time.monotonic(), seconds
