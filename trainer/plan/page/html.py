"""A plan as a page to look at: one HTML file without scripts, that opens without a server."""

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from planner.planned import Planned
from planner.reasons import alternatives, memory_gib, named_option, step_milliseconds
from trainer.plan.page.figures import Figure, best_of, figures_of
from trainer.plan.page.svg import STYLE as BARS
from trainer.plan.page.svg import draw_figure
from trainer.plan.text import named_cluster, shortage, summary, where_is

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2228; max-width: 1180px; margin: 0 auto; padding: 0 16px 48px }
h1 { font-size: 1.5em; margin: 1em 0 0 } h2 { font-size: 1.15em; margin: 2em 0 .4em }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px } dt { color: #5b6570 } dd { margin: 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid #e3e6ea; vertical-align: top }
td { white-space: nowrap } td.number { text-align: right; font-variant-numeric: tabular-nums }
td li { white-space: normal; min-width: 240px }
summary { cursor: pointer; color: #1f6fb4 } p.note { color: #5b6570 }
@media (max-width: 600px) { dl { grid-template-columns: 1fr } dt { margin-top: 8px } }
"""


def draw_page(planned: Sequence[Planned], measured: Sequence[Figure] = ()) -> str:
    """Returns the page of the fastest plan that fits, and of all clusters beside each other where there are several.

    Args:
        planned: The plans.
        measured: Figures of a run under the plan.
    """
    best = best_of(planned)
    figures = [draw_figure(figure) for figure in [*measured, *figures_of(planned)]]
    return whole_page(f"Plan for {best.cluster}", [_head(best), *_too_small(planned), *figures, *_tables(best)])


def draw_figures(title: str, remark: str, figures: Sequence[Figure]) -> str:
    """Returns a page of nothing but figures."""
    head = f'<h1>{escape(title)}</h1><p class="note">{escape(remark)}</p>'
    return whole_page(title, [head, *(draw_figure(figure) for figure in figures)])


def whole_page(title: str, parts: Sequence[str]) -> str:
    """Returns a page in the style of all pages."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{BARS}</style></head>\n<body>\n"
        f"{body}\n</body></html>\n"
    )


def _head(planned: Planned) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(line)}</dd>" for name, line in summary(planned).items())
    return f"<h1>{escape(str(planned.cluster))}</h1><p>{escape(named_cluster(planned.cluster))}</p><dl>{facts}</dl>"


def _too_small(planned: Sequence[Planned]) -> Iterator[str]:
    for one in planned:
        if not one.fits:
            yield f'<p class="note">{escape(f"{one.cluster} does not fit: {shortage(one)}")}</p>'


def _tables(planned: Planned) -> Iterator[str]:
    placement = planned.found.placement
    yield '<h2>Tables</h2><div class="wide"><table id="tables"><tr><th>table</th><th>shape</th><th>placement</th>'
    yield "<th>ranks</th><th>GiB</th><th>ms</th><th>why here</th></tr>"
    for number in np.argsort(-placement.rated.total_cost[placement.option], kind="stable"):
        yield _row(planned, int(number))
    yield '</table></div><p class="note">GiB and ms of each table are means over the ranks.</p>'


def _row(planned: Planned, number: int) -> str:
    found, table = planned.found, planned.tables[number]
    option = int(found.placement.option[number])
    cells = [table.name, f"{table.rows:,} x {table.columns}", named_option(found, option)]
    cells.append(where_is(found.placement.where[number], planned.topology.ranks))
    numbers = [f"{sum(memory_gib(found, option)):.3f}", f"{step_milliseconds(found, option):.4f}"]
    reasons = "".join(
        f"<li>{escape(other.placement)}: {other.milliseconds:.3g} ms, {sum(other.memory_gib):.3g} GiB; "
        f"{escape(other.reason)}</li>"
        for other in alternatives(found, number)
    )
    why = f"<details><summary>why here</summary><ul>{reasons or '<li>nothing else is allowed</li>'}</ul></details>"
    return (
        "<tr>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "".join(f'<td class="number">{cell}</td>' for cell in numbers)
        + f"<td>{why}</td></tr>"
    )
