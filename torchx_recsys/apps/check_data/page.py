"""Draws the report of a check as an HTML page without scripts, with plots of every column."""

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from torchx_recsys.apps.check_data.figures import edges_of
from torchx_recsys.apps.check_data.finding import percent
from torchx_recsys.apps.check_data.label_checks import rates_over_time
from torchx_recsys.apps.check_data.profile import Profile
from torchx_recsys.apps.check_data.report import COLUMNS, Report, is_of_ids, note_on_sample, role_of, row_of
from trainer.core.console import plural
from trainer.pages.figures import COLORS, Lying
from trainer.pages.html import draw_figure, whole_page

BARS, WIDTH, HEIGHT = 40, 1000, 160
TOP = 10
SHOWN_FILES = 40
STYLE = """<style>
svg.values { width: 100%; height: 160px; display: block; border-bottom: 1px solid #9aa3ad }
td.error { color: #b3261e; font-weight: 600 } td.warning { color: #a15c00; font-weight: 600 }
#findings td:nth-child(n+4), #suggestions td:last-child { white-space: normal; min-width: 160px; max-width: 420px }
#findings td:nth-child(4) { overflow-wrap: anywhere; min-width: 90px }
section { border-top: 1px solid #e3e6ea; margin-top: 2em } section > h2:first-child { font-size: 1.35em }
</style>"""


def draw_report(report: Report) -> str:
    """Returns the page: findings, columns, suggestions, then plots of each column."""
    parts = [STYLE, "<h1>Data check</h1>", *_read(report), *_findings(report), *_columns(report)]
    parts += [*_suggestions(report), *_labels(report)]
    for name, profile in report.profiles.items():
        parts += _plots(profile, report) if role_of(name, report.config) != "label" else ()
    return whole_page("Data check", parts)


def _table(name: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(one)}</th>" for one in head)
    lines = "".join(f"<tr>{''.join(f'<td{_class(one)}>{escape(one)}</td>' for one in row)}</tr>" for row in rows)
    return f'<div class="wide"><table id="{name}"><tr>{cells}</tr>{lines}</table></div>'


def _class(cell: str) -> str:
    return f' class="{cell}"' if cell in ("error", "warning") else ""


def _read(report: Report) -> Iterator[str]:
    for one in report.splits:
        of = f"{plural(one.split.files.rows, 'row')} in {plural(len(one.split.files.files), 'file')}"
        figures = f"{one.rows_read:,} read, figures from {one.sample.num_rows:,}"
        yield f'<p class="note">{one.name}: {of}; {figures}</p>'
    if note := note_on_sample(report):
        yield f'<p class="note">{escape(note)}</p>'


def _findings(report: Report) -> Iterator[str]:
    yield "<h2>Findings</h2>"
    rows = [[one.severity, one.check, one.column, one.where, one.found, one.remedy] for one in report.findings]
    yield _table("findings", ("", "check", "column", "where", "found", "what to do"), rows) if rows else "<p>None.</p>"


def _columns(report: Report) -> Iterator[str]:
    yield "<h2>Columns</h2>"
    yield _table("columns", COLUMNS, [row_of(profile, report) for profile in report.profiles.values()])


def _suggestions(report: Report) -> Iterator[str]:
    if report.suggestions:
        yield "<h2>Suggested keys</h2>"
        rows = [[one.key, str(one.now), str(one.value), one.why] for one in report.suggestions]
        yield _table("suggestions", ("key", "now", "better", "why"), rows)


def _labels(report: Report) -> Iterator[str]:
    """Yields the label rate of each file, and of each period of time."""
    first = report.splits[0]
    for label in report.config.labels:
        if label not in report.profiles or report.profiles[label].kind == "text":
            continue
        files = [*zip(first.split.files.files, first.tallies[label], strict=True)]
        names = [file.name.rpartition("/")[2] for file, one in files if one.values][:SHOWN_FILES]
        rates = [one.rate for _, one in files if one.values][:SHOWN_FILES]
        if not np.isnan(rates).any():
            yield draw_figure(Lying(f"{label} by file", "Mean label of each file.", "", names, {"rate": rates}))
        if report.time:
            values = np.nan_to_num(report.profiles[label].numbers(first))
            found = rates_over_time(values, report.profiles[report.time].numbers(first))
            names = [f"from {start:.6g}" for start in found["start"]]
            words = f"{label} over {report.time}", "Mean label of equal numbers of rows, in the order of time."
            yield draw_figure(Lying(*words, "", names, {"rate": found["rate"].tolist()}))


def _plots(profile: Profile, report: Report) -> Iterator[str]:
    role = role_of(profile.name, report.config)
    yield f'<section><h2 id="{escape(profile.name, quote=True)}">{escape(profile.name)}</h2>'
    if is_of_ids(profile, role):
        yield from _top_ids(profile)
    elif len(profile.finite(profile.first)):
        yield _histogram(profile)
        yield from _rates_of_buckets(profile)
    yield "</section>"


def _top_ids(profile: Profile) -> Iterator[str]:
    ids = profile.first_ids
    top = ids.top(TOP)
    names = [str(value) for value, _, _ in top]
    shares = {"share": [100 * count / len(ids.codes) for _, _, count in top]}
    yield draw_figure(Lying("Most frequent ids", f"Of {len(ids.distinct):,} different ones.", "%", names, shares))
    for label, positive in profile.labels.items():
        rates = [float(positive[ids.row_of[ids.codes == place]].mean()) for _, place, _ in top]
        yield draw_figure(
            Lying(f"{label} of these", f"{percent(positive.mean())} of all rows.", "", names, {"": rates})
        )


def _rates_of_buckets(profile: Profile) -> Iterator[str]:
    values = profile.numbers(profile.first)
    edges = edges_of(profile.finite(profile.first))
    places = np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values, side="right"))
    names = ["lowest", *(f"from {edge:.4g}" for edge in edges), "null"]
    there = [number for number in range(len(names)) if (places == number).any()]
    for label, positive in profile.labels.items():
        rates = [float(positive[places == number].mean()) for number in there]
        words = f"{label} by value", "Mean label of tenths of the values."
        yield draw_figure(Lying(*words, "", [names[number] for number in there], {"": rates}))


def _histogram(profile: Profile) -> str:
    """Returns histograms of all splits over the middle of the first one's values, as lines over its bars."""
    low, high = np.quantile(profile.finite(profile.first), [0.005, 0.995])
    high = high if high > low else low + 1
    shares = {}
    for measured in profile.measured:
        values = profile.finite(measured)
        counts, _ = np.histogram(np.clip(values, low, high), BARS, (low, high))
        shares[measured.name] = counts / max(1, len(values))
    top, step = max(share.max() for share in shares.values()) or 1.0, WIDTH / BARS
    shapes = []
    for number, share in enumerate(shares.values()):
        heights = HEIGHT * share / top
        if number == 0:
            shapes += [_bar(place * step, step, height) for place, height in enumerate(heights)]
        else:
            path = " ".join(
                f"H{place * step:.1f} V{HEIGHT - height:.1f} H{(place + 1) * step:.1f}"
                for place, height in enumerate(heights)
            )
            shapes.append(
                f'<path d="M0 {HEIGHT} {path} V{HEIGHT}" fill="none" stroke="{COLORS[number]}" stroke-width="2"/>'
            )
    key = "".join(f'<span><i style="background:{COLORS[n]}"></i>{name}</span>' for n, name in enumerate(shares))
    ends = f'<div class="ends"><span>{low:.4g}</span><span>{high:.4g}</span></div>'
    drawing = f'<svg class="values" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">{"".join(shapes)}</svg>'
    return f'<p class="key">{key}</p>{drawing}{ends}'


def _bar(x: float, width: float, height: float) -> str:
    place = f'x="{x:.1f}" y="{HEIGHT - height:.1f}" width="{0.9 * width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{COLORS[0]}"/>'
