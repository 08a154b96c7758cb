"""A plan as a page to look at: one HTML file without scripts, that opens without a server."""

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from trainer.plan.exchange import sent_by_hosts
from trainer.plan.loads import bound_by, parts_of, step_of
from trainer.plan.memory import GIB
from trainer.plan.planned import Planned
from trainer.plan.reasons import alternatives, memory_gib, named_option, step_milliseconds
from trainer.tools.plan.drawing import STYLE as BARS
from trainer.tools.plan.drawing import colors, lying, stacked
from trainer.tools.plan.text import named_cluster, samples_per_second, shortage, summary, where_is

NAMED = 8  # tables with a color of their own
HEAVIEST = 15
REST = "all other tables"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2228; max-width: 1180px; margin: 0 auto; padding: 0 16px 48px }
h1 { font-size: 1.5em; margin: 1em 0 0 } h2 { font-size: 1.15em; margin: 2em 0 .4em }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px } dt { color: #5b6570 } dd { margin: 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid #e3e6ea; vertical-align: top }
td { white-space: nowrap } td.number { text-align: right; font-variant-numeric: tabular-nums }
td li { white-space: normal; min-width: 240px }
summary { cursor: pointer; color: #1f6fb4 } .key span { display: inline-block; margin-right: 14px }
.key i { display: inline-block; width: 11px; height: 11px; margin-right: 5px } p.note { color: #5b6570 }
@media (max-width: 600px) { dl { grid-template-columns: 1fr } dt { margin-top: 8px } }
"""


def draw_page(planned: Sequence[Planned]) -> str:
    """Returns the page of the fastest plan that fits, and of all clusters beside each other where there are several."""
    best = min((one for one in planned if one.fits), key=lambda one: step_of(one).total)
    parts = [_head(best), *(_compared(planned) if len(planned) > 1 else ()), *_ranks(best), *_tables(best)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Plan for {escape(str(best.cluster))}</title><style>{STYLE}{BARS}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _head(planned: Planned) -> str:
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(line)}</dd>" for name, line in summary(planned).items())
    return f"<h1>{escape(str(planned.cluster))}</h1><p>{escape(named_cluster(planned.cluster))}</p><dl>{facts}</dl>"


def _compared(planned: Sequence[Planned]) -> Iterator[str]:
    fitting = sorted((one for one in planned if one.fits), key=lambda one: step_of(one).total)
    yield "<h2>Clusters compared</h2>"
    yield "<p>Samples per second.</p>"
    yield lying([(str(one.cluster), samples_per_second(one, step_of(one).total)) for one in fitting], "samples/s")
    yield "<p>Milliseconds of a step.</p>"
    yield lying([(str(one.cluster), step_of(one).total) for one in fitting], "ms")
    for one in planned:
        if not one.fits:
            yield f'<p class="note">{escape(f"{one.cluster} does not fit: {shortage(one)}")}</p>'


def _ranks(planned: Planned) -> Iterator[str]:
    placement, step = planned.found.placement, step_of(planned)
    kind = 0 if planned.ranks.on_gpu else 1
    where = "GPU" if planned.ranks.on_gpu else "host"
    memory = _by_table(planned, placement.rated.memory[placement.option, kind] / GIB)
    yield f"<h2>Memory of the ranks</h2><p>GiB of {where} memory for tables; the dashed line is what there is.</p>"
    yield _key(memory) + stacked(memory, "GiB", float(placement.memory_limit[kind]) / GIB)
    time = _by_table(planned, placement.rated.cost[placement.option])
    yield "<h2>Time of the ranks</h2><p>Milliseconds of a step for tables and the exchange of their embeddings.</p>"
    yield _key(time) + stacked(time, "ms")
    parts = parts_of(step)
    yield f"<h2>Parts of a step</h2><p>Of the slowest rank in each; the longest is {escape(bound_by(parts).name)}.</p>"
    yield lying([(part.name, part.slowest) for part in parts], "ms")
    yield "<h2>Heaviest tables</h2><p>Milliseconds of a step, a mean over the ranks.</p>"
    heaviest = np.argsort(-placement.rated.total_cost[placement.option], kind="stable")[:HEAVIEST]
    costs = [step_milliseconds(planned.found, int(placement.option[one])) for one in heaviest]
    yield lying([(planned.tables[one].name, cost) for one, cost in zip(heaviest, costs, strict=True)], "ms")
    if planned.ranks.hosts > 1:
        yield "<h2>Exchange between hosts</h2><p>MB that each host sends to others in a step, there and back.</p>"
        yield lying([(f"host {number}", sent / 1e6) for number, sent in enumerate(sent_by_hosts(planned))], "MB")


def _by_table(planned: Planned, of_shard: np.ndarray) -> dict[str, np.ndarray]:
    """Returns what each of the heaviest tables, and all others together, have on each rank.

    The heaviest are the same for memory and time, so that a table has one color.
    """
    placement = planned.found.placement
    totals = np.column_stack([placement.rated.total_cost, placement.rated.total_memory])[placement.option]
    heaviest = np.argsort(-(totals / np.maximum(totals.sum(axis=0), 1e-30)).sum(axis=1), kind="stable")[:NAMED]
    found = {planned.tables[one].name: np.zeros(planned.ranks.number) for one in heaviest}
    found[REST] = np.zeros(planned.ranks.number)
    for table, where in enumerate(placement.where):
        found.get(planned.tables[table].name, found[REST])[where] += of_shard[table]
    return found


def _key(parts: dict[str, np.ndarray]) -> str:
    names = zip(parts, colors(len(parts)), strict=True)
    return f'<p class="key">{"".join(_colored(name, color) for name, color in names)}</p>'


def _colored(name: str, color: str) -> str:
    return f'<span><i style="background:{color}"></i>{escape(name)}</span>'


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
    cells.append(where_is(found.placement.where[number], planned.ranks.number))
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
