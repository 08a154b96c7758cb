"""HTML pages: a single file that needs no server. Tables and bars are HTML, with inline SVG; `charts` draws curves.

Words stand beside the SVG, so that they do not scale with it.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np

from trainer.pages import charts
from trainer.pages.figures import Figure, Lines, Lying, Stacked, colors_of, has_key, number_in_words

WIDTH, HEIGHT = 1000, 200
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2228; max-width: 1180px; margin: 0 auto; padding: 0 16px 48px }
h1 { font-size: 1.5em; margin: 1em 0 0 } h2 { font-size: 1.15em; margin: 2em 0 .4em }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px } dt { color: #5b6570 } dd { margin: 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; min-width: min(100%, 560px) }
th, td { text-align: left; padding: 4px 20px 4px 0; border-bottom: 1px solid #e3e6ea; vertical-align: top }
td { white-space: nowrap } td.number { text-align: right; font-variant-numeric: tabular-nums }
td li { white-space: normal; min-width: 240px }
a, summary { color: #1f6fb4 } summary { cursor: pointer } p.note { color: #5b6570 }
dl.facts { grid-template-columns: repeat(auto-fill, minmax(min(190px, 100%), 1fr)); gap: 10px 18px; margin: 14px 0 0;
  padding: 14px 16px; background: #f6f7f9; border-radius: 8px }
dl.facts dd { font-weight: 600; overflow-wrap: anywhere } dl.facts dt { font-size: 13px; margin: 0 }
.wide th:first-child, .wide td:first-child { position: sticky; left: 0; background: #fff; z-index: 1 }
@media (max-width: 600px) { dl { grid-template-columns: 1fr } dt { margin-top: 8px }
  dl.facts { grid-template-columns: 1fr 1fr }
  .wide td:first-child { min-width: 34vw; max-width: 45vw; white-space: normal; overflow-wrap: anywhere } }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(330px, 100%), 1fr)); gap: 14px;
  margin-top: 14px } .card .bars { grid-template-columns: minmax(70px, 36%) 1fr max-content }
figure.card { margin: 0; padding: 10px 12px; border: 1px solid #e3e6ea; border-radius: 8px; min-width: 0 }
figure.card h3 { font-size: 1em; margin: 0; overflow-wrap: anywhere }
figure.card table { min-width: 0; width: 100%; font-size: 13px }
figure.card :is(td, th) { white-space: normal; overflow-wrap: break-word; padding-right: 10px }
figure.card .wide td:first-child { min-width: 0 }
figure.card p { color: #5b6570; font-size: 13px; line-height: 1.35; margin: 0 0 6px }
svg.ranks { width: 100%; height: 200px; display: block; border-bottom: 1px solid #9aa3ad }
.ends { display: flex; justify-content: space-between; color: #5b6570; font-size: 13px }
.bars { display: grid; grid-template-columns: minmax(80px, 22%) 1fr minmax(86px, max-content); gap: 3px 10px;
  font-size: 13px; align-items: center } .bars .of { text-align: right; overflow-wrap: anywhere }
.bars svg { width: 100%; height: 15px; display: block }
.key span { display: inline-block; margin-right: 14px }
.key i { display: inline-block; width: 11px; height: 11px; margin-right: 5px }
"""


def whole_page(title: str, parts: Sequence[str]) -> str:
    """Returns a page in the style of all pages, which loads nothing and runs no script but that of the charts."""
    body = "\n".join(parts)
    has_charts = '<figure class="chart card">' in body
    allowed = f"script-src 'sha256-{charts.digest()}'; " if has_charts else ""
    script = f"\n<script>{charts.code()}</script>" if has_charts else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {allowed}'
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}{charts.style() if has_charts else ''}</style></head>\n<body>\n"
        f"{body}{script}\n</body></html>\n"
    )


def draw_table(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with its title."""
    return f"<h2>{escape(title)}</h2>{draw_rows(rows)}"


def draw_rows(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table, whose first row is its header; its first column stays in sight."""
    lines = [("th", rows[0]), *(("td", row) for row in rows[1:])]
    cells = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in lines)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="wide"><table>{body}</table></div>'


def draw_more(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Returns a table that is hidden until its title is clicked."""
    return f"<details><summary>{escape(title)}</summary>{draw_rows(rows)}</details>"


def draw_facts(facts: Mapping[str, str]) -> str:
    """Returns names and values beside each other, as many in a row as there is room for."""
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{cells}</dl>'


def draw_figures(title: str, remark: str, figures: Sequence[Figure]) -> str:
    """Returns a page of figures only."""
    head = f'<h1>{escape(title)}</h1><p class="note">{escape(remark)}</p>'
    return whole_page(title, [head, *(draw_figure(figure) for figure in figures)])


def draw_figure(figure: Figure) -> str:
    """Returns a figure of bars with its title and its key."""
    return f"<h2>{escape(figure.title)}</h2><p>{escape(figure.remark)}</p>\n{_bars(figure)}"


def draw_cards(figures: Iterable[Figure | Lines]) -> str:
    """Returns figures beside each other, as many in a row as there is room for; empty without figures."""
    drawn = "\n".join(
        charts.draw_chart(one)
        if isinstance(one, Lines)
        else f'<figure class="card"><h3>{escape(one.title)}</h3><p>{escape(one.remark)}</p>{_bars(one)}</figure>'
        for one in figures
    )
    return f'<div class="cards">{drawn}</div>' if drawn else ""


def draw_row_cards(tables: Mapping[str, Sequence[Sequence[str]]]) -> str:
    """Returns tables by their titles beside each other, as many in a row as there is room for."""
    cards = "".join(
        f'<figure class="card"><h3>{escape(title)}</h3>{draw_rows(rows)}</figure>' for title, rows in tables.items()
    )
    return f'<div class="cards">{cards}</div>'


def _bars(figure: Figure) -> str:
    drawn = _stacked(figure) if isinstance(figure, Stacked) else _lying(figure)
    return f"{_key(figure)}\n{drawn}" if has_key(figure) else drawn


def _key(figure: Figure) -> str:
    spans = (
        f'<span><i style="background:{color}"></i>{escape(name)}</span>' for name, color in colors_of(figure).items()
    )
    return f'<p class="key">{"".join(spans)}</p>'


def _stacked(figure: Stacked) -> str:
    values = np.array([*figure.parts.values()])
    ranks, top = values.shape[1], max(float(values.sum(axis=0).max()), figure.limit or 0.0) or 1.0
    step, shapes, base = WIDTH / ranks, [], np.zeros(ranks)
    for (name, of_ranks), color in zip(figure.parts.items(), colors_of(figure).values(), strict=True):
        for rank in np.flatnonzero(of_ranks > 0):
            height = HEIGHT * of_ranks[rank] / top
            y = HEIGHT * (1 - base[rank] / top) - height
            title = f"{figure.of} {rank}, {escape(name)}: {of_ranks[rank]:.4g} {figure.unit}"
            shapes.append(_bar(rank * step, y, 0.85 * step, height, color, title))
        base += of_ranks
    if figure.limit:
        y = HEIGHT * (1 - figure.limit / top) + 1
        shapes.append(f'<path d="M0 {y:.2f}H{WIDTH}" stroke="#c00" stroke-dasharray="8 6"/>')
    drawing = f'<svg class="ranks" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">{"".join(shapes)}</svg>'
    ends = f'<div class="ends"><span>{figure.of} 0</span><span>{figure.of} {ranks - 1}</span></div>'
    return f'<div class="ends"><span>{top:.3g} {figure.unit}</span></div>{drawing}{ends}'


def _bar(x: float, y: float, width: float, height: float, color: str, title: str) -> str:
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f'<rect {place} fill="{color}"><title>{title}</title></rect>'


def _lying(figure: Lying) -> str:
    top = max((value for values in figure.series.values() for value in values), default=0.0) or 1.0
    rows = "".join(
        f'<span class="of">{escape(name) if first else ""}</span><svg><rect width="{100 * max(value, 0) / top:.2f}%" '
        f'height="100%" fill="{color}"/></svg><span>{number_in_words(value)} {_unit(figure, number)}</span>'
        for number, name in enumerate(figure.names)
        for first, color, value in _bars_of(figure, number)
    )
    return f'<div class="bars">{rows}</div>'


def _unit(figure: Lying, number: int) -> str:
    return figure.spreads[number] if figure.spreads else figure.unit


def _bars_of(figure: Lying, number: int) -> list[tuple[bool, str, float]]:
    """Returns for each series whether it is the first, its color, and the value of a bar."""
    colors = colors_of(figure)
    return [(not place, colors[name], values[number]) for place, (name, values) in enumerate(figure.series.items())]
