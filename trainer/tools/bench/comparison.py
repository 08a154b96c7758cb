"""Rates beside rates, measured by turns."""

import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

Rates = Callable[[], float]


@dataclass(frozen=True)
class Comparison:
    """One thing measured beside another.

    Attributes:
        what: What was measured.
        baseline: What it was compared with.
        unit: Of the rates.
        target: Least ratio to reach; None where any will do.
        measured: The rate of every repeat.
        compared: The baseline's.
    """

    what: str
    baseline: str
    unit: str
    target: float | None
    measured: list[float]
    compared: list[float]

    @property
    def ratio(self) -> float:
        """The median over the repeats of what was measured over its baseline."""
        return statistics.median(a / b for a, b in zip(self.measured, self.compared, strict=True))


def alternate(repeats: int, *measured: Rates) -> list[list[float]]:
    """Returns the rates of each thing; it runs once before it counts, and every second repeat goes backwards."""
    rates: list[list[float]] = [[] for _ in measured]
    for repeat in range(-1, repeats):
        for number in sorted(range(len(measured)), reverse=repeat % 2 == 1):
            rates[number].append(measured[number]())
    return [found[1:] for found in rates]


def render_comparisons(found: list[Comparison]) -> str:
    """Returns a table of medians, for people."""
    rows = [
        [
            one.what,
            f"{_figure(one.measured)} {one.unit}",
            one.baseline,
            f"{_figure(one.compared)} {one.unit}",
            f"{one.ratio:.3g}",
            "" if one.target is None else f"{one.target:.2f}",
        ]
        for one in found
    ]
    return tabulate(rows, ["measured", "rate", "baseline", "rate", "ratio", "target"], disable_numparse=True)


def _figure(rates: list[float]) -> str:
    rate = statistics.median(rates)
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def describe_machine() -> dict[str, Any]:
    """Returns what rates depend on."""
    models = [line.split(":")[1].strip() for line in _cpu_info() if line.startswith("model name")]
    return {
        "system": platform.platform(),
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "torch_threads": torch.get_num_threads(),
    }


def _cpu_info() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
