"""The page of a run: an HTML file made from the files in the run directory. Free of torch."""

from collections.abc import Mapping
from html import escape
from math import isfinite
from typing import Any

from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.extensions.page.curves import draw_curves
from trainer.extensions.page.recorded import Run, read_if_whole
from trainer.metrics.registry import built_in_direction
from trainer.pages.figures import Lines, Lying, number_in_words
from trainer.pages.html import draw_cards, draw_facts, draw_figure, draw_more, draw_row_cards, draw_table, whole_page
from trainer.pages.segments import Table, segments_table, union

PAGE = "run.html"
CALIBRATION = "calibration.json"
RECOMMENDED = "recommended.json"
MOST_FEATURES = 20  # number of bars of importance


def write_page(directory: RunDirectory) -> None:
    """Writes the page of a run into its directory, if there is a run."""
    if run := Run.of(directory, directory.url.rpartition("/")[2]):
        directory.write(PAGE, page_of_run(run, directory, Checkpoints(directory)))


def page_of_run(run: Run, directory: RunDirectory, checkpoints: Checkpoints) -> str:
    """Returns the page of a run: how it stands, its curves, and where it came from."""
    split = "test" if run.baselines.get("test") else "validation"
    above = {"Metrics": _metrics(run), f"Beside simple predictors, on data.{split}": _baselines(run, split)}
    set_keys = run.set_keys
    keys = [[key, without_secrets(str(value))] for key, value in run.config.items()]
    below = {
        "Segments": segments_table(directory.read_records("segments.jsonl")),
        "Starts": _starts(run.facts),
        "Checkpoints": [["step", "directory"], *([f"{step:,}", checkpoints.url(step)] for step in checkpoints.steps())],
        "Plan": _plan(run.plan),
        "Environment": [["", ""], *_environment(run.facts)],
        "Configuration": [["not at its default", "value"], *(row for row in keys if row[0] in set_keys)],
    }
    parts = [
        f"<h1>{escape(run.name)}</h1>",
        draw_facts(run.summary),
        *(draw_table(title, rows) for title, rows in above.items() if len(rows) > 1),
        "<h2>Curves</h2>",
        draw_curves([run]),
        _calibration(read_if_whole(directory, CALIBRATION)),
        _recommended(read_if_whole(directory, RECOMMENDED)),
        _importance(read_if_whole(directory, "importance.json")),
        *(draw_table(title, rows) for title, rows in below.items() if len(rows) > 1),
        draw_more(f"All {len(keys):,} keys", [["key", "value"], *keys]),
    ]
    return whole_page(run.name, [part for part in parts if part])


def _metrics(run: Run) -> Table:
    """Returns the last metrics of each split, and the best on data.validation with its step."""
    metrics = list(dict.fromkeys(name.partition(" ")[2] for name in run.results))
    splits = [split for split in ("validation", "test") if split in run.evaluated_at]
    header = ["", *(f"{split}, step {run.evaluated_at[split]:,}" for split in splits), "best on validation"]
    rows = []
    for metric in metrics:
        last = [run.results.get(f"{split} {metric}") for split in splits]
        rows.append([metric, *("" if one is None else f"{one:.5f}" for one in last), _best(run, metric)])
    return [header, *rows]


def _best(run: Run, metric: str) -> str:
    steps, values = run.during(metric)
    higher = built_in_direction(metric)
    if higher is None or len(values) < 2 or run.has_segments:
        return ""
    step, value = (max if higher else min)(zip(steps, values, strict=True), key=lambda one: one[1])
    return f"{value:.5f} at step {step:,}"


def _baselines(run: Run, split: str) -> Table:
    """Returns the metrics of the run and of baselines on the same rows, with a star at the best of each."""
    metrics = [
        name.partition(" ")[2] for name in run.results if name.startswith(f"{split} ")
        if built_in_direction(name.partition(" ")[2]) is not None and run.baseline_of(split, name.partition(" ")[2])
    ]  # fmt: skip
    by_metric = {
        metric: {run.name: run.results[f"{split} {metric}"]} | run.baseline_of(split, metric) for metric in metrics
    }
    best = {metric: (max if built_in_direction(metric) else min)(found.values()) for metric, found in by_metric.items()}
    rows = [
        [name, *(_starred(found.get(name), best[metric]) for metric, found in by_metric.items())]
        for name in union([*by_metric.values()])
    ]
    return [["", *metrics], *rows]


def _starred(value: float | None, best: float) -> str:
    return "" if value is None else f"{value:.5f}{' *' * (value == best)}"


def _calibration(found: Mapping[str, Any]) -> str:
    """Returns a chart for each task of calibration.json; empty without it."""
    tasks = union([one["tasks"] for one in found.values()])
    remark = "Means of a twentieth of the samples each. Above the diagonal, labels are 1 more often than predicted."
    charts = []
    for task in tasks:
        series = {
            f"{split}, step {one['step']:,}": (one["tasks"][task]["predicted"], one["tasks"][task]["observed"])
            for split, one in found.items()
            if len(one["tasks"].get(task, {}).get("predicted", ())) > 1
        }
        ends = [end for predicted, _ in series.values() for end in (predicted[0], predicted[-1])]
        if ends:
            ideal = (min(ends), max(ends))
            title = f"observed over predicted, {task}" if len(tasks) > 1 else "observed over predicted"
            faint = {"as predicted": next(iter(series))}
            shown = series | {"as predicted": (ideal, ideal)}
            charts.append(Lines(title, remark, shown, faint=faint, of="predicted", drawn="marked"))
    return f"<h2>Calibration</h2>{draw_cards(charts)}" if charts else ""


def _recommended(found: Mapping[str, Any]) -> str:
    """Returns the lists of recommended.json beside each other; empty without it."""
    if not found.get("lists"):
        return ""
    cards = {f"user {one['user']}": one["rows"] for one in found["lists"]}
    return f"<h2>Recommended, at step {found['step']:,}</h2>{draw_row_cards(cards)}"


def _importance(found: Mapping[str, Any]) -> str:
    """Returns the bars of importance.json, the greatest first; empty without it."""
    features = [one for one in found.get("features", []) if isfinite(one.get("drop", float("nan")))][:MOST_FEATURES]
    if not features:
        return ""
    remark = (
        f"How much worse {found['metric']} of {found['value']:.5f} on data.{found['split']} gets at step "
        f"{found['step']:,} when a feature's values are those of other rows; with the standard deviation."
    )
    names, drops = [one["name"] for one in features], [one["drop"] for one in features]
    spreads = [f"± {number_in_words(one['spread'])}" if "spread" in one else "" for one in features]
    return draw_figure(Lying("Importance of features", remark, "", names, {"drop": drops}, spreads))


def _starts(facts: Mapping[str, Any]) -> Table:
    starts = facts.get("starts", [])
    rows = [
        [one.get("time", ""), f"{one.get('step', 0):,}", *(str(one.get(key, "")) for key in ("ranks", "host", "after"))]
        for one in starts
    ]
    return [["time", "after step", "ranks", "host of rank 0", "the attempt before"], *rows]


def _plan(plan: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        [table, _shape(one), *(str(one.get(key, "")) for key in ("sharding_type", "compute_kernel", "ranks"))]
        for table, one in plan.items()
    ]
    return [["table", "shape", "sharding type", "kernel", "ranks"], *rows]


def _shape(table: Mapping[str, Any]) -> str:
    sizes = [table[key] for key in ("rows", "columns") if key in table]  # a plan by hand need not have them
    return f"{sizes[0]:,} x {sizes[1]}" if len(sizes) == 2 else ""


def _environment(facts: Mapping[str, Any]) -> Table:
    versions = ", ".join(f"{name} {number}" for name, number in facts.get("versions", {}).items())
    code = [["code", facts["code"]]] if "code" in facts else []
    return [["command", without_secrets(facts.get("command", ""))], *code, ["versions", versions]]
