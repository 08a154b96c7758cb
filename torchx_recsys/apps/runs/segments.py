"""Watches a run over segments: metrics on each segment, shifts of the data, and exports."""

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from math import isfinite

from tabulate import tabulate

from torchx_recsys.apps.runs.static_model import find_static, static_metrics
from torchx_recsys.apps.runs.topic_lag import topic_lag
from torchx_recsys.apps.runs.watched_segments import (
    HOUR,
    Watched,
    done_of,
    end_of,
    new_ids_of,
    publications_of,
    shifts_of,
)
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import named
from trainer.pages.figures import Lines
from trainer.pages.html import draw_cards, draw_table, whole_page
from trainer.pages.segments import Table, segments_table

PAGE = "segments.html"
SHOWN = 30  # maximum number of segments in the terminal
SHIFTED = 6  # number of features in the figure of shifts
RATE = "label_rate"


Series = Mapping[str, Mapping[str, float]]
"""Values by segment of each curve."""


def segments(config: Config, out: str, to: str | None = None, static: str | None = None) -> None:
    """Watches a run over segments: metrics, shifts, exports, lag. CONFIG is a TOML file or a name.

    Prints the table of segments, and writes segments.html into the run directory, which opens without a server. The
    shift of the features is measured in a sample of each segment's rows, once. Of segments of a topic it shows how far
    the run is behind, in records and in seconds.

    Args:
        config: The configuration, which names the segments.
        out: The run directory, any fsspec URL.
        to: The directory of its exports, any fsspec URL.
        static: A model to compare with: the step of a checkpoint that is kept, or first. It is evaluated on each
            segment after it, once.

    Raises:
        InputError: The run has no segments, there is no such checkpoint, or the data cannot be used.
    """
    if config.data.segments.path is None:
        raise InputError("data.segments.path is unset; name the segments of the run, or take its config.toml")
    run = RunDirectory(out)
    with named("--out", out):
        lines = [line for line in run.read_records("segments.jsonl") if line["samples"]]
        ends = {line["step"] for line in lines}
        metrics = [line for line in run.records("metrics.jsonl") if line["step"] in ends]
    if not lines:
        raise InputError(f"--out is {place(out)}, where no segment was trained on; train on one first")
    chosen = None if static is None else find_static(run, static)
    watched = Watched(
        name=run.url.rpartition("/")[2],
        lines=lines,
        shifts=shifts_of(run, config.data, [line["segment"] for line in lines]),
        new_ids=new_ids_of(metrics, lines),
        done=done_of(metrics, lines),
        publications=[] if to is None else publications_of(to, lines),
        static={} if chosen is None else static_metrics(config, run, chosen, lines),
        static_step=None if chosen is None else chosen.step,
        topic=topic_lag(run, config.data, [line["segment"] for line in lines])
        if config.data.reader == "kafka"
        else None,
    )
    header, *rows = _table(watched)
    print(tabulate(rows[-SHOWN:], header, disable_numparse=True))
    with named("--out", out):
        run.write(PAGE, _page(watched))
    print(f"\nwritten to {without_secrets(run.url_of(PAGE))}")


def _page(watched: Watched) -> str:
    tables = [draw_table(title, rows) for title, rows in _tables(watched).items() if len(rows) > 1]
    title = f"Segments of {watched.name}"
    return whole_page(title, [f"<h1>{escape(title)}</h1>", tables[0], draw_cards(_figures(watched)), *tables[1:]])


def _tables(watched: Watched) -> dict[str, Table]:
    """Returns tables by title, each with its header."""
    published = [[_time(one.time), f"{one.step:,}", one.segment, one.what] for one in reversed(watched.publications)]
    return {
        "Run": [["", watched.name], *_summary(watched)],
        "Segments": _table(watched),
        "Published": [["time", "step", "segment", ""], *published],
    }


def _summary(watched: Watched) -> Table:
    lines, newest = watched.lines, watched.names[-1]
    rows = [
        ["segments", f"{len(lines):,}, {watched.names[0]} to {newest}"],
        ["samples", f"{sum(line['samples'] for line in lines):,}"],
    ]
    if (end := end_of(newest)) is not None:
        rows.append(["behind", f"segment {newest} ended {(datetime.now(UTC).timestamp() - end) / HOUR:,.1f} h ago"])
    if watched.topic:
        rows += watched.topic.summary()
    if current := [one for one in watched.publications if one.is_current]:
        rows.append(["current export", f"step {current[-1].step:,}, segment {current[-1].segment}"])
    if refused := [one for one in watched.publications if one.refused]:
        rows.append(["refused last", f"segment {refused[-1].segment}, {refused[-1].what}"])
    return rows


def _table(watched: Watched) -> Table:
    """Returns a row for each segment."""
    table = segments_table(watched.lines)
    metrics = table[0][3:]
    columns: dict[str, Mapping[str, str]] = {}
    if watched.static and metrics:
        name = metrics[0]
        of_static = {segment: values[name] for segment, values in watched.static.items() if name in values}
        columns[f"{name} of step {watched.static_step:,}"] = {name: f"{v:.5f}" for name, v in of_static.items()}
    if RATE not in {name.partition("/")[0] for name in metrics}:
        columns |= {label: {name: f"{v:.5f}" for name, v in rates.items()} for label, rates in _rates(watched).items()}
    columns["shift"] = {name: _worst(shift["indices"]) for name, shift in watched.shifts.items()}
    columns |= {f"new {of}": {name: f"{v:,.0f}" for name, v in new.items()} for of, new in watched.new_ids.items()}
    columns["published"] = {one.segment: one.what.partition(":")[0] for one in watched.publications}
    for what, hours in watched.hours_behind().items():
        columns[f"{what}, hours after"] = {name: f"{value:,.1f}" for name, value in hours.items()}
    columns |= watched.topic.counts() if watched.topic else {}
    for what, seconds in watched.seconds_behind().items():
        columns[f"{what}, seconds after"] = {name: f"{value:,.0f}" for name, value in seconds.items()}
    shown = {title: cells for title, cells in columns.items() if any(cells.get(name) for name in watched.names)}
    rows = [
        [*row, *(cells.get(name, "") for cells in shown.values())]
        for name, row in zip(watched.names, table[1:], strict=True)
    ]
    return [[*table[0], *shown], *rows]


def _figures(watched: Watched) -> list[Lines]:
    """Returns the curves over the segments, if they have at least two points."""
    metrics, names = _metrics(watched), watched.names
    drawn: list[tuple[str, str, Series, float | None]] = [
        (name, "On each segment, before it was trained on.", series, None) for name, series in metrics.items()
    ]
    if RATE not in metrics:
        drawn.append(("Labels", "Mean of each label in the rows that were read.", _rates(watched), None))
    samples = {line["segment"]: line["samples"] for line in watched.lines}
    tables = ", ".join(watched.new_ids)
    drawn += [
        ("Samples", "Of each segment.", {"samples": samples}, 0.0),
        ("Shift", "Population stability index from the segment before, of the worst features.", _shifts(watched), 0.0),
        ("New ids", f"Ids that got a row of their table: {tables}.", watched.new_ids, 0.0),
        (
            "Hours behind",
            "From the end of a segment until it was trained on, and published.",
            watched.hours_behind(),
            0.0,
        ),
        (
            "Seconds behind",
            "From the newest event of a segment until it was cut, trained on, and published.",
            watched.seconds_behind(),
            0.0,
        ),
        ("Records behind", "In the topic after a segment when it was cut.", _records_behind(watched), 0.0),
    ]
    found = ((title, remark, _curves(series, names), lowest) for title, remark, series, lowest in drawn)
    return [
        Lines(title, remark, curves, names, lowest, of="segment") for title, remark, curves, lowest in found if curves
    ]


def _records_behind(watched: Watched) -> Series:
    segments = watched.topic.segments if watched.topic else {}
    return {"records": {name: float(one.behind) for name, one in segments.items()}} if segments else {}


def _metrics(watched: Watched) -> Mapping[str, Series]:
    """Returns the values on each segment, by metric and task; those of the static model beside the run's."""
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    before = {line["segment"]: line["before"] or {} for line in watched.lines}
    for name in segments_table(watched.lines)[0][3:]:
        metric, _, task = name.partition("/")
        series = found.setdefault(metric, {})
        for values, of in ((before, ""), (watched.static, f"step {watched.static_step} alone")):
            title = ", ".join(filter(None, (task, of))) or "the run"
            series[title] = {segment: one[name] for segment, one in values.items() if name in one}
    return found


def _rates(watched: Watched) -> dict[str, dict[str, float]]:
    """Returns the mean of each label in each segment."""
    found: dict[str, dict[str, float]] = {}
    for segment, shift in watched.shifts.items():
        for label, rate in shift["label_rates"].items():
            found.setdefault(label, {})[segment] = rate
    return found


def _shifts(watched: Watched) -> dict[str, dict[str, float]]:
    """Returns the indices of the features that shifted most in any segment."""
    found: dict[str, dict[str, float]] = {}
    for segment in watched.names:
        for column, index in watched.shifts.get(segment, {}).get("indices", {}).items():
            found.setdefault(column, {})[segment] = index
    worst = sorted(found, key=lambda column: -max(found[column].values()))[:SHIFTED]
    return {column: found[column] for column in worst}


def _curves(series: Mapping[str, Mapping[str, float]], names: list[str]) -> dict[str, tuple[list[int], list[float]]]:
    """Returns indices of segments and their values; empty unless at least two segments have finite values."""
    found = {}
    for title, values in series.items():
        points = [(place, values[name]) for place, name in enumerate(names) if isfinite(values.get(name, float("nan")))]
        if len(points) > 1:
            found[title] = ([place for place, _ in points], [value for _, value in points])
    return found


def _worst(indices: Mapping[str, float]) -> str:
    """Returns the feature that shifted most, with its index."""
    return next((f"{column} {index:.2f}" for column, index in indices.items()), "")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
