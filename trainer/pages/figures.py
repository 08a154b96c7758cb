"""Figures of bars as data; `html` and `image` draw the figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
        series: Values of the bars; the bars of a name lie below each other.
    """

    title: str
    remark: str
    unit: str
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]


Curve = tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray]
"""Steps and values."""


@dataclass(frozen=True)
class Lines:
    """Curves over steps, for pages only.

    Attributes:
        title: Title of the figure.
        remark: A sentence below the title.
        series: Steps and values of each curve, by name.
        names: Names of the steps from 0 on, such as days. Unset: the last is named by its number.
        lowest: The value at the bottom. Unset: the least.
    """

    title: str
    remark: str
    series: Mapping[str, Curve]
    names: Sequence[str] = ()
    lowest: float | None = None


Figure = Stacked | Lying


def colors_of(figure: Figure | Lines) -> dict[str, str]:
    """Returns the color of each part or series."""
    names = [*(figure.parts if isinstance(figure, Stacked) else figure.series)]
    found = [COLORS[number % len(COLORS)] for number in range(len(names))]
    if isinstance(figure, Stacked) and len(names) > 1:
        found[-1] = GREY
    return dict(zip(names, found, strict=True))


def has_key(figure: Figure | Lines) -> bool:
    """Returns whether there are several colors to explain."""
    return len(colors_of(figure)) > 1


def number_in_words(value: float) -> str:
    """Returns the label of a bar."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
