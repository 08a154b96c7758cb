"""A plan as an HTML page and as a PNG: figures, summary and tables."""

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from torchx_recsys.apps.pages.image import draw_image
from torchx_recsys.apps.plan.figures import best_of, figures_of
from torchx_recsys.apps.plan.text import named_cluster, shortage, summary, where_is
from torchx_recsys.planner.plan import Planned
from torchx_recsys.planner.reasons import WITHOUT_TABLES, alternatives, memory_gib, named_option, step_milliseconds
from trainer.pages.figures import Figure
from trainer.pages.html import draw_figure, whole_page


def draw_page(planned: Sequence[Planned], measured: Sequence[Figure] = ()) -> str:
    """Returns the page of the fastest plan that fits, with a comparison if there are several clusters.

    Args:
        planned: The plans.
        measured: Figures of a run under the plan.
    """
    best = best_of(planned)
    figures = [draw_figure(figure) for figure in [*measured, *figures_of(planned)]]
    return whole_page(f"Plan for {best.cluster}", [_head(best), *_too_small(planned), *figures, *_tables(best)])


def draw_png(planned: Sequence[Planned]) -> bytes:
    """Returns the page as an image, without the table of tables."""
    best = best_of(planned)
    facts = [named_cluster(best.cluster), *(f"{name}: {line}" for name, line in summary(best).items())]
    facts += [f"{one.cluster} does not fit: {shortage(one)}" for one in planned if not one.fits]
    return draw_image(str(best.cluster), facts, figures_of(planned), best.topology.ranks)


def _head(planned: Planned) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(line)}</dd>" for name, line in summary(planned).items())
    return f"<h1>{escape(str(planned.cluster))}</h1><p>{escape(named_cluster(planned.cluster))}</p><dl>{facts}</dl>"


def _too_small(planned: Sequence[Planned]) -> Iterator[str]:
    for one in planned:
        if not one.fits:
            yield f'<p class="note">{escape(f"{one.cluster} does not fit: {shortage(one)}")}</p>'


def _tables(planned: Planned) -> Iterator[str]:
    placement = planned.found.placement
    if not planned.tables:
        yield f'<p class="note">{WITHOUT_TABLES}</p>'
        return
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
