"""Draws the report of a check as an HTML page, with plots of every column."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from urllib.parse import quote

import numpy as np

from torchx_recsys.apps.check_data.correlations import correlations, draw_correlations
from torchx_recsys.apps.check_data.figures import edges_of
from torchx_recsys.apps.check_data.finding import ORDER, percent
from torchx_recsys.apps.check_data.label_checks import rates_over_time
from torchx_recsys.apps.check_data.profile import Profile
from torchx_recsys.apps.check_data.report import (
    COLUMNS,
    Report,
    is_of_ids,
    note_on_sample,
    role_of,
    row_of,
    rows_of_columns,
)
from trainer.core.console import plural
from trainer.pages.figures import Lines, Lying
from trainer.pages.html import draw_cards, draw_facts, whole_page

BARS, TOP = 40, 10
SHOWN_FILES = 40
STYLE = """<style>
td.error { color: #b3261e; font-weight: 600 } td.warning { color: #a15c00; font-weight: 600 }
#findings td:nth-child(n+4), #suggestions td:last-child { white-space: normal; min-width: 160px; max-width: 420px }
#findings td:nth-child(4) { overflow-wrap: anywhere; min-width: 90px }
#left-out td:last-child { white-space: normal; min-width: 160px }
section { border-top: 1px solid #e3e6ea; margin-top: 2em } section > h2:first-child { font-size: 1.35em }
#correlations { min-width: 0 } #correlations td { padding: 3px 5px; text-align: right; font-size: 12px }
#correlations th { font-weight: 400 } #correlations tr:first-child th { vertical-align: bottom; padding: 0 4px 4px }
#correlations tr:first-child span { writing-mode: vertical-rl; transform: rotate(180deg) }
@media (max-width: 600px) {
  #findings tr:first-child { display: none } #findings tr { display: block; border-bottom: 1px solid #e3e6ea }
  #findings td:nth-child(n) { display: inline-block; min-width: 0; max-width: 100%; padding: 2px 10px 2px 0; border: 0 }
}
</style>"""


def draw_report(report: Report) -> str:
    """Returns the page: findings, columns, suggestions, correlations, then plots of each column."""
    parts = [STYLE, "<h1>Data check</h1>", draw_facts(_facts(report)), *_sample(report), *_findings(report)]
    parts += [*_columns(report), *_left_out(report), *_suggestions(report), *_correlations(report), *_labels(report)]
    for name, profile in report.profiles.items():
        parts += _section(profile, report) if _has_section(name, report) else ()
    return whole_page("Data check", parts)


def _facts(report: Report) -> dict[str, str]:
    rows = {
        one.name: f"{plural(one.split.files.rows, 'row')} in {plural(len(one.split.files.files), 'file')}"
        for one in report.splits
    }
    roles = Counter(role_of(name, report.config) for name in report.profiles)
    columns = {f"{role} columns" if role != "-" else "other columns": str(number) for role, number in roles.items()}
    return {**rows, **columns, **{f"{one}s": str(report.count(one)) for one in ORDER}}


def _table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]], report: Report, column: int = 0) -> str:
    """Returns a table; the cells in a column of names link to the plots of their column."""
    cells = "".join(f"<th>{escape(one)}</th>" for one in head)
    lines = "".join(
        f"<tr>{''.join(_cell(one, report if place == column else None) for place, one in enumerate(row))}</tr>"
        for row in rows
    )
    return f'<div class="wide"><table id="{name}"><tr>{cells}</tr>{lines}</table></div>'


def _cell(cell: str, report: Report | None) -> str:
    text = escape(cell)
    if report and _has_section(cell, report):
        text = f'<a href="#{quote(cell)}">{text}</a>'
    return f"<td{_class(cell)}>{text}</td>"


def _has_section(name: str, report: Report) -> bool:
    return name in report.profiles and role_of(name, report.config) != "label"


def _class(cell: str) -> str:
    return f' class="{cell}"' if cell in ("error", "warning") else ""


def _sample(report: Report) -> Iterator[str]:
    for one in report.splits:
        if not one.is_whole:
            yield f'<p class="note">{one.name}: {one.rows_read:,} read, figures from {one.sample.num_rows:,}</p>'
    if note := note_on_sample(report):
        yield f'<p class="note">{escape(note)}</p>'


def _findings(report: Report) -> Iterator[str]:
    yield "<h2>Findings</h2>"
    rows = [[one.severity, one.check, one.column, one.where, one.found, one.remedy] for one in report.findings]
    head = ("", "check", "column", "where", "found", "what to do")
    yield _table("findings", head, rows, report, column=2) if rows else "<p>None.</p>"


def _columns(report: Report) -> Iterator[str]:
    yield "<h2>Columns</h2>"
    yield _table("columns", COLUMNS, rows_of_columns(report), report)


def _left_out(report: Report) -> Iterator[str]:
    if report.left_out:
        yield "<h2>Left out</h2>"
        yield _table("left-out", ("column", "why"), [*report.left_out.items()], report)


def _correlations(report: Report) -> Iterator[str]:
    numbers = [
        profile
        for name, profile in report.profiles.items()
        if profile.kind in ("integer", "number") and not is_of_ids(profile, role_of(name, report.config))
    ]
    names, matrix = correlations(numbers)
    if names:
        yield draw_correlations(names, matrix)


def _suggestions(report: Report) -> Iterator[str]:
    if report.suggestions:
        yield "<h2>Suggested keys</h2>"
        rows = [[one.key, str(one.now), str(one.value), one.why] for one in report.suggestions]
        yield _table("suggestions", ("key", "now", "better", "why"), rows, report, column=-1)


def _labels(report: Report) -> Iterator[str]:
    """Yields the label rate of each file, and of each period of time."""
    first, drawn = report.splits[0], []
    for label in report.config.labels:
        if label not in report.profiles or report.profiles[label].kind == "text":
            continue
        files = [*zip(first.split.files.files, first.tallies[label], strict=True)]
        names = [file.name.rpartition("/")[2] for file, one in files if one.values][:SHOWN_FILES]
        rates = [one.rate for _, one in files if one.values][:SHOWN_FILES]
        if not np.isnan(rates).any():
            drawn.append(Lying(f"{label} by file", "Mean label of each file.", "", names, {"rate": rates}))
        if report.time:
            values = np.nan_to_num(report.profiles[label].numbers(first))
            found = rates_over_time(values, report.profiles[report.time].numbers(first))
            names = [f"from {start:.6g}" for start in found["start"]]
            words = f"{label} over {report.time}", "Mean label of equal numbers of rows, in the order of time."
            drawn.append(Lying(*words, "", names, {"rate": found["rate"].tolist()}))
    if drawn:
        yield "<h2>Labels</h2>"
        yield draw_cards(drawn)


def _section(profile: Profile, report: Report) -> Iterator[str]:
    """Yields what the page has of a column: its row of the table again, its findings, its plots."""
    name, role = escape(profile.name, quote=True), role_of(profile.name, report.config)
    yield f'<section><h2 id="{name}">{name}</h2>'
    words = dict(zip(COLUMNS[1:], row_of(profile, report)[1:], strict=True))
    if why := report.left_out.get(profile.name):
        words["left out"] = why
    yield f"<p>{escape(' · '.join(f'{key} {word}' for key, word in words.items() if word))}</p>"
    for one in report.findings:
        if one.column == profile.name:
            yield f"<p><b>{one.severity}</b> {escape(f'{one.check}: {one.found} ({one.where}); {one.remedy}')}</p>"
    if is_of_ids(profile, role):
        yield draw_cards(_top_ids(profile))
    elif len(profile.finite(profile.first)):
        yield draw_cards([_histogram(profile), *_rates_of_buckets(profile)])
    yield "</section>"


def _top_ids(profile: Profile) -> Iterator[Lying]:
    ids = profile.first_ids
    top = ids.top(TOP)
    names = [str(value) for value, _, _ in top]
    shares = {"share": [100 * count / len(ids.codes) for _, _, count in top]}
    yield Lying("Most frequent ids", f"Of {len(ids.distinct):,} different ones.", "%", names, shares)
    for label, positive in profile.labels.items():
        rates = [float(positive[ids.row_of[ids.codes == place]].mean()) for _, place, _ in top]
        yield Lying(f"{label} of these", f"{percent(positive.mean())} of all rows.", "", names, {"": rates})


def _rates_of_buckets(profile: Profile) -> Iterator[Lying]:
    values = profile.numbers(profile.first)
    edges = edges_of(profile.finite(profile.first))
    places = np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values, side="right"))
    names = ["lowest", *(f"from {edge:.4g}" for edge in edges), "null"]
    there = [number for number in range(len(names)) if (places == number).any()]
    for label, positive in profile.labels.items():
        rates = [float(positive[places == number].mean()) for number in there]
        words = f"{label} by value", "Mean label of tenths of the values."
        yield Lying(*words, "", [names[number] for number in there], {"": rates})


def _histogram(profile: Profile) -> Lines:
    """Returns histograms of all splits over the middle of the first one's values."""
    edges = _edges(profile.finite(profile.first))
    shares = {}
    for measured in profile.measured:
        values = profile.finite(measured)
        counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
        share = 100 * counts / max(1, len(values))
        shares[measured.name] = (edges, np.append(share, share[-1]))  # a step has its height from its edge on
    remark = f"Percent of the values in each of {len(edges) - 1} steps; the outermost 0.5 % are in the last ones."
    return Lines("Distribution", remark, shares, lowest=0.0, of="from", drawn="steps")


def _edges(values: np.ndarray) -> np.ndarray:
    """Returns the edges of at most BARS equal steps over the middle of ascending values; of whole numbers, if all are.

    A step of 1.4 would hold one whole number or two in turn, and the histogram would be a comb.
    """
    low, high = np.quantile(values, [0.005, 0.995])
    if (values == np.floor(values)).all():
        low, high = np.floor(low), np.floor(high) + 1
        width = max(1.0, np.ceil((high - low) / BARS))
        return low + width * np.arange(np.ceil((high - low) / width) + 1)
    return np.linspace(low, high if high > low else low + 1, BARS + 1)
