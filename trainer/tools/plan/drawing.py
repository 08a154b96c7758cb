"""Bars as inline SVG, which scales with the page; words stand beside it, so that they do not."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

WIDTH, HEIGHT = 1000, 200
COLORS = ("#1f6fb4", "#e07b39", "#3a9c5f", "#b8478f", "#8a6d3b", "#5566c9", "#2aa198", "#c94f4f")
REST = "#b9bec6"
STYLE = """
svg.ranks { width: 100%; height: 200px; display: block; border-bottom: 1px solid #9aa3ad }
.ends { display: flex; justify-content: space-between; color: #5b6570; font-size: 13px }
.bars { display: grid; grid-template-columns: minmax(80px, 22%) 1fr minmax(86px, max-content); gap: 3px 10px;
  font-size: 13px; align-items: center } .bars > :first-child, .bars .of { text-align: right; overflow-wrap: anywhere }
.bars svg { width: 100%; height: 15px; display: block }
"""


def stacked(parts: Mapping[str, np.ndarray], unit: str, limit: float | None = None) -> str:
    """Returns standing bars, one for each rank, of parts on top of each other.

    Args:
        parts: The value of each part on each rank; the last part is grey.
        unit: Unit of the values.
        limit: What there is, drawn as a line.
    """
    values = np.array(list(parts.values()))
    ranks, top = values.shape[1], max(float(values.sum(axis=0).max()), limit or 0.0) or 1.0
    step, shapes, base = WIDTH / ranks, [], np.zeros(ranks)
    for (name, of_ranks), color in zip(parts.items(), colors(len(parts)), strict=True):
        for rank in np.flatnonzero(of_ranks > 0):
            height = HEIGHT * of_ranks[rank] / top
            y = HEIGHT * (1 - base[rank] / top) - height
            title = f"rank {rank}, {escape(name)}: {of_ranks[rank]:.4g} {unit}"
            shapes.append(_bar(rank * step, y, 0.85 * step, height, color, title))
        base += of_ranks
    if limit:
        y = HEIGHT * (1 - limit / top) + 1
        shapes.append(f'<path d="M0 {y:.2f}H{WIDTH}" stroke="#c00" stroke-dasharray="8 6"/>')
    drawing = f'<svg class="ranks" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">{"".join(shapes)}</svg>'
    ends = f'<div class="ends"><span>rank 0</span><span>rank {ranks - 1}</span></div>'
    return f'<div class="ends"><span>{top:.3g} {unit}</span></div>{drawing}{ends}'


def _bar(x: float, y: float, width: float, height: float, color: str, title: str) -> str:
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect {place} fill="{color}"><title>{title}</title></rect>'


def lying(values: Sequence[tuple[str, float]], unit: str) -> str:
    """Returns lying bars, one below the other, each with its name and value."""
    top = max((value for _, value in values), default=0.0) or 1.0
    rows = "".join(
        f'<span class="of">{escape(name)}</span><svg><rect width="{100 * value / top:.2f}%" height="100%" '
        f'fill="{COLORS[0]}"/></svg><span>{_number(value)} {unit}</span>'
        for name, value in values
    )
    return f'<div class="bars">{rows}</div>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def colors(number: int) -> list[str]:
    """Returns the colors of so many parts, the last of them grey."""
    return [*(COLORS[part % len(COLORS)] for part in range(number - 1)), REST]
