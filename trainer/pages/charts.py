"""Charts with axes, a grid and values at the pointer, drawn by uPlot from the JSON that stands beside them.

uPlot 1.6.32 (uplot/, MIT) is part of the package, and of each page that has charts: 51 kB, drawn in milliseconds. The
page of a run is written at every evaluation, so it has to be small: plotly.js has 4.9 MB, Vega with Vega-Lite 0.8 MB.
Without JavaScript a chart is its title and its key, which has the last and the best value of each curve.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from trainer.pages.figures import Curve, Lines, colors_of, number_in_words

MOST_POINTS = 1000  # largest number of points in a curve
LEVELS = ("#7a828b", "#b0893d", "#8e5bb5", "#4f9a76", "#b5605f", "#3d8fb0")
STYLE = """
.plot { min-height: 210px } @media (scripting: none) { .plot { display: none } }
figure.chart ul { list-style: none; display: flex; flex-wrap: wrap; gap: 0 14px; margin: 4px 0 0; padding: 0;
  font-size: 13px }
figure.chart li { overflow-wrap: anywhere } figure.chart li i, .tip i { display: inline-block; width: 14px; height: 0;
  border-top: 3px solid; vertical-align: middle; margin-right: 5px } figure.chart li.level i { border-top: 2px dashed }
figure.chart li.faint { opacity: .6 }
figure.chart b { font-weight: 600; font-variant-numeric: tabular-nums }
.tip { position: absolute; top: 0; left: 0; z-index: 9; pointer-events: none; background: #fffffff2;
  white-space: nowrap; border: 1px solid #cbd1d8; border-radius: 5px; padding: 4px 8px; font-size: 12px;
  line-height: 1.45 }
.tip i { border-top: 0; height: 9px; width: 9px; border-radius: 2px }
"""


def draw_chart(chart: Lines) -> str:
    """Returns a chart with its title and its key."""
    colors = colors_of(chart)
    levels = [
        {"name": name, "value": value, "color": LEVELS[place % len(LEVELS)]}
        for place, (name, value) in enumerate(chart.levels.items())
    ]
    series = [_series(name, chart, colors[name]) for name in chart.series]
    tree = {
        "series": series,
        "levels": levels,
        "names": [*chart.names],
        "lowest": chart.lowest,
        "of": chart.of,
        "drawn": chart.drawn,
        "log": chart.log,
        "integers": all(isinstance(x, int) for one in series for x in one["x"]),
    }
    # A name must not end the script: JSON may write < as its number.
    data = json.dumps(tree, separators=(",", ":")).replace("<", "\\u003c")
    keys = [_key(one, chart) for one in series] + [
        _entry("level", one["color"], one["name"], one["value"]) for one in levels
    ]
    remark = f"<p>{escape(chart.remark)}</p>" if chart.remark else ""
    return (
        f'<figure class="chart card"><h3>{escape(chart.title)}</h3>{remark}<div class="plot"></div>'
        f'<script type="application/json">{data}</script><ul>{"".join(keys)}</ul></figure>'
    )


@cache
def code() -> str:
    """Returns the scripts of a page with charts."""
    return f"{_read('uplot/uPlot.iife.min.js')}\n{_read('charts.js')}"


@cache
def style() -> str:
    """Returns the style of a page with charts."""
    return _read("uplot/uPlot.min.css") + STYLE


@cache
def digest() -> str:
    """Returns the hash of `code` that a Content-Security-Policy allows."""
    return base64.b64encode(hashlib.sha256(code().encode()).digest()).decode()


def _read(name: str) -> str:
    return files("trainer.pages").joinpath(name).read_text("utf-8")


def _series(name: str, chart: Lines, color: str) -> dict[str, Any]:
    steps, values = _thinned(*chart.series[name])
    series = {
        "name": name,
        "color": color,
        "faint": name in chart.faint,
        "x": [_rounded(x) for x in steps],
        "y": [_rounded(y) for y in values],
    }
    if name in chart.best:
        of_steps, of_values = chart.series[name]
        place = int(np.searchsorted(np.asarray(of_steps), chart.best[name]))
        series["best"] = [_rounded(of_steps[place]), _rounded(of_values[place])]
    return series


def _rounded(value: Any) -> float | int:
    """Returns a number as JSON holds it; six digits are more than a chart shows."""
    return int(value) if isinstance(value, int | np.integer) else float(f"{value:.6g}")


def _key(series: dict[str, Any], chart: Lines) -> str:
    value = None if chart.drawn != "line" else series["y"][-1]
    rest = ""
    if best := series.get("best"):
        step = chart.names[best[0]] if chart.names else f"{best[0]:,}"
        rest = f", best <b>{number_in_words(best[1])}</b> at {escape(f'{chart.of} {step}')}"
    return _entry("faint" if series["faint"] else "", series["color"], series["name"], value, rest)


def _entry(kind: str, color: str, name: str, value: float | None, rest: str = "") -> str:
    number = "" if value is None else f" <b>{number_in_words(value)}</b>"
    return f'<li class="{kind}"><i style="color:{color}"></i>{escape(name)}{number}{rest}</li>'


def _thinned(steps: Sequence[float] | np.ndarray, values: Sequence[float] | np.ndarray) -> Curve:
    """Returns a curve of at most MOST_POINTS points: the least and the greatest of equal parts, so that spikes stay."""
    if len(steps) <= MOST_POINTS:
        return steps, values
    parts = np.array_split(np.arange(len(steps)), MOST_POINTS // 2)
    seen, found = np.array(steps), np.array(values)
    kept = sorted({part[find(found[part])] for part in parts for find in (np.argmin, np.argmax)})
    return seen[kept].tolist(), found[kept].tolist()
