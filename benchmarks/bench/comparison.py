"""Compares rates with the rates of baselines, measured in turn.

`torch.utils.benchmark` was weighed. It times one statement after the other, so a machine that gets busy in between
changes the ratio, and it cannot run a statement on all ranks at once.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from tabulate import tabulate


@dataclass(frozen=True)
class Comparison:
    """The rates of a measurement and of its baseline.

    Attributes:
        what: Name of the measurement.
        baseline: Name of the baseline.
        unit: Unit of the rates.
        target: Least ratio to reach; None without a target.
        measured: The rate in every repeat.
        compared: The baseline's rate in every repeat.
    """

    what: str
    baseline: str
    unit: str
    target: float | None
    measured: list[float]
    compared: list[float]

    @property
    def ratios(self) -> list[float]:
        """The rate over the baseline's, in every repeat."""
        return [a / b for a, b in zip(self.measured, self.compared, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)


def alternate(repeats: int, *measure: Callable[[], float]) -> list[list[float]]:
    """Returns the rates of each measurement, after one warm-up each; every second round runs in reverse order."""
    rates: list[list[float]] = [[] for _ in measure]
    for repeat in range(-1, repeats):
        for number in sorted(range(len(measure)), reverse=repeat % 2 == 1):
            rates[number].append(measure[number]())
    return [found[1:] for found in rates]


def render_comparisons(comparisons: list[Comparison]) -> str:
    """Returns a table of median rates, and of ratios with their spread over repeats."""
    rows = [
        [
            one.what,
            f"{_median_rate(one.measured)} {one.unit}",
            one.baseline,
            f"{_median_rate(one.compared)} {one.unit}",
            median_and_spread(one.ratios),
            "" if one.target is None else f"{one.target:.2f}",
        ]
        for one in comparisons
    ]
    return tabulate(rows, ["measured", "rate", "baseline", "rate", "ratio", "target"], disable_numparse=True)


def median_and_spread(values: list[float]) -> str:
    """Returns the text `MEDIAN (LEAST to GREATEST)`."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def _median_rate(rates: list[float]) -> str:
    rate = statistics.median(rates)
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
