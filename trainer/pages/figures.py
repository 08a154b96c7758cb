"""Figures of bars and curves as data; `html`, `charts` and `image` draw the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

COLORS = ("#1f6fb4", "#e07b39", "#3a9c5f", "#b8478f", "#8a6d3b", "#5566c9", "#2aa198", "#c94f4f", "#4a5568")
GREY = "#b9bec6"


@dataclass(frozen=True)
class Stacked:
    """Vertical bars of stacked parts, one bar for each rank or host.

    Attributes:
        title: Title of the figure.
        remark: A sentence below the title.
        unit: Unit of the values.
        parts: The value of each part in each bar, `[bars]`; the last of several parts is grey.
        limit: The available amount, drawn as a line.
        of: A bar's name, before its number.
    """

    title: str
    remark: str
    unit: str
    parts: Mapping[str, np.ndarray]
    limit: float | None = None
    of: str = "rank"


@dataclass(frozen=True)
class Lying:
    """Horizontal bars, one below the other.

    Attributes:
        title: Title of the figure.
        remark: A sentence below the title.
        unit: Unit of the values.
        names: Names of the bars.
        series: Values of the bars, of which negative ones have no length; the bars of a name lie below each other.
        spreads: Words behind the value of each name, in place of the unit. Unset: the unit.
    """

    title: str
    remark: str
    unit: str
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]
    spreads: Sequence[str] = ()


Curve = tuple[Sequence[float] | np.ndarray, Sequence[float] | np.ndarray]
"""Steps, or other values along the chart, and values."""


@dataclass(frozen=True)
class Lines:
    """A chart over steps, for pages only.

    Attributes:
        title: Title of the chart.
        remark: A sentence below the title.
        series: Steps and values of each curve, by name; each ascending in steps.
        names: Names of the steps from 0 on, such as days. Unset: their numbers.
        lowest: The value at the bottom. Unset: the least.
        levels: Values to compare with, drawn as dashed lines, by name.
        best: The step of the best value of some curves, which is marked.
        faint: Curves in the color of another curve, such as training beside validation.
        of: Unit of the steps.
        drawn: How a curve is drawn: as a line, as a line through marked points, as steps with the first filled (a
            histogram), or as points.
        log: Whether steps are on a logarithmic axis.
    """

    title: str
    remark: str
    series: Mapping[str, Curve]
    names: Sequence[str] = ()
    lowest: float | None = None
    levels: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    faint: Mapping[str, str] = field(default_factory=dict)
    of: str = "step"
    drawn: Literal["line", "marked", "steps", "points"] = "line"
    log: bool = False


Figure = Stacked | Lying


def colors_of(figure: Figure | Lines) -> dict[str, str]:
    """Returns the color of each part or series."""
    faint = figure.faint if isinstance(figure, Lines) else {}
    names = [name for name in (figure.parts if isinstance(figure, Stacked) else figure.series) if name not in faint]
    found = [COLORS[number % len(COLORS)] for number in range(len(names))]
    if isinstance(figure, Stacked) and len(names) > 1:
        found[-1] = GREY
    colors = dict(zip(names, found, strict=True))
    return colors | {name: colors[of] for name, of in faint.items()}


def has_key(figure: Figure) -> bool:
    """Returns whether there are several colors to explain."""
    return len(colors_of(figure)) > 1


def number_in_words(value: float) -> str:
    """Returns the label of a bar."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
