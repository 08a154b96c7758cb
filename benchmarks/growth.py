"""Measures how the processor time of a step grows by tables, ranks and batch.

Writes docs/explanation/step_limits.md.
Takes 15 minutes.

A flat curve is overhead: the cost of a step even with few samples.
"""

import json
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench.growth import BATCHES, TABLES
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.pages.chart import FAINT, Svg
from torchx_recsys.apps.runs.local_job import run_job

PAGE, FIGURE = ROOT / "docs" / "explanation" / "step_limits.md", ROOT / "docs" / "step_growth.svg"
RANKS = (1, 2, 4)
TURNS = 5
MIDDLE = TABLES[1]
COLORS = ("#1f77b4", "#d95f02", "#1b9e77")
LEFT, RIGHT, TOP, PLOT, BETWEEN = 60, 640, 40, 200, 50  # layout of a chart, in pixels
Cell = tuple[int, int, int]  # ranks, tables, samples


def main() -> None:
    """Measures on each number of ranks in turn, and writes the figure and the tables."""
    turns: list[dict[int, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TURNS):
            turns.append({})
            for ranks in RANKS:
                run_job(ranks, Path(folder, "log"), "bench", "growth", "--out", folder, "--repeats", "1")
                turns[-1][ranks] = json.loads(Path(folder, "bench-growth.json").read_text())
    found = [milliseconds(measured) for measured in turns]
    medians = {cell: statistics.median(one[cell] for one in found) for cell in found[0]}
    FIGURE.write_bytes(draw(medians))
    write_measured(PAGE, "growth", render(medians, beside_one_rank(found), turns[0][1]))


def milliseconds(measured: dict[int, dict[str, Any]]) -> dict[Cell, float]:
    """Returns a rank's processor time of a step, by ranks, tables and samples.

    Args:
        measured: The content of bench-growth.json by ranks.
    """
    return {
        (ranks, one["tables"], one["samples"]): statistics.median(one["milliseconds"])
        for ranks, facts in measured.items()
        for one in facts["costs"]
    }


def beside_one_rank(turns: list[dict[Cell, float]]) -> dict[Cell, float]:
    """Returns the samples per second of processor time of several ranks, relative to a single rank.

    Args:
        turns: A rank's processor time of a step in each turn. The ratio is the median of those within a turn.
    """
    return {
        cell: statistics.median(one[1, *cell[1:]] / (cell[0] * one[cell]) for one in turns)
        for cell in turns[0]
        if cell[0] > 1
    }


def render(found: dict[Cell, float], ratios: dict[Cell, float], facts: dict[str, Any]) -> str:
    """Returns a table of times and one of ratios, and the machine."""
    machine = facts["machine"]
    return (
        f"{_table(found, RANKS, _rounded)}\n\n"
        "Milliseconds of processor time of a rank for a step, by samples of the global batch; "
        f"{machine['cores']} cores ({machine['processor']}), torch {facts['versions']['torch']}.\n\n"
        f"{_table(ratios, RANKS[1:], '{:.2f}'.format)}\n\n"
        "Samples per second of processor time, of all ranks, beside those of one rank: medians of the ratios of "
        f"{TURNS} turns."
    )


def _table(found: dict[Cell, float], ranks: Sequence[int], form: Callable[[float], str]) -> str:
    heads = ["Ranks", "Tables", *(f"{samples:,}" for samples in BATCHES)]
    rows = [
        [str(number), str(tables), *(form(found[number, tables, samples]) for samples in BATCHES)]
        for number in ranks
        for tables in TABLES
    ]
    return table(heads, rows)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(found: dict[Cell, float]) -> bytes:
    """Returns the figure as SVG: one rank with few and many tables above, one to four ranks below. Both axes double."""
    canvas = Svg(2 * (TOP + PLOT + BETWEEN))
    of_tables = {f"{tables} tables": [found[1, tables, samples] for samples in BATCHES] for tables in TABLES}
    of_ranks = {
        f"{ranks} rank{'s' * (ranks > 1)}": [found[ranks, MIDDLE, samples] for samples in BATCHES] for ranks in RANKS
    }
    _chart(canvas, TOP, "one rank: milliseconds of processor time for a step, by samples of the batch", of_tables)
    title = f"{MIDDLE} tables: milliseconds of processor time of a rank, by samples of the global batch"
    _chart(canvas, 2 * TOP + PLOT + BETWEEN, title, of_ranks)
    return canvas.file()


def _chart(canvas: Svg, top: float, title: str, curves: dict[str, list[float]]) -> None:
    values = [value for curve in curves.values() for value in curve]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def place(number: int, value: float) -> tuple[float, float]:
        x = LEFT + (RIGHT - LEFT) * number / (len(BATCHES) - 1)
        return x, top + PLOT * (1 - (math.log10(value) - low) / (high - low))

    canvas.text(LEFT, top - 14, title, "left")
    for power in range(low, high + 1):
        (x, y), end = place(0, 10.0**power), place(len(BATCHES) - 1, 10.0**power)
        canvas.line([(x, y), end], FAINT)
        canvas.text(x - 8, y + 4, f"{10.0**power:,g}", "right")
    for number, samples in enumerate(BATCHES):
        canvas.text(place(number, 1)[0], top + PLOT + 20, f"{samples:,}", "middle")
    for color, (name, curve) in zip(COLORS, curves.items(), strict=True):
        points = [place(number, value) for number, value in enumerate(curve)]
        canvas.line(points, color)
        canvas.text(points[-1][0] + 8, points[-1][1] + 4, name, "left")


if __name__ == "__main__":
    main()
