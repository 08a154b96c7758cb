"""Rates beside the rates of baselines, measured by turns.

`torch.utils.benchmark` was weighed: it times one statement after the other, so a machine that gets busy between two of
them changes their ratio, and it runs no statement on all ranks at once.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from tabulate import tabulate


@dataclass(frozen=True)
class Comparison:
    """The rates of one thing and of its baseline.

    Attributes:
        what: What was measured.
        baseline: What it is compared with.
        unit: Unit of the rates.
        target: Least ratio to reach; None without one.
        measured: Its rate in every repeat.
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
        """Its rate over the baseline's in every repeat."""
        return [a / b for a, b in zip(self.measured, self.compared, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)


def alternate(repeats: int, *measure: Callable[[], float]) -> list[list[float]]:
    """Returns the rates of each thing; all run once before they count, and in reverse order every second time."""
    rates: list[list[float]] = [[] for _ in measure]
    for repeat in range(-1, repeats):
        for number in sorted(range(len(measure)), reverse=repeat % 2 == 1):
            rates[number].append(measure[number]())
    return [found[1:] for found in rates]


def render_comparisons(comparisons: list[Comparison]) -> str:
    """Returns a table of median rates, and of ratios with their spread over the repeats."""
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
