"""The charts of runs: their losses, metrics, rates and speed over the steps, with baselines as dashed lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape

import numpy as np

from trainer.extensions.page.recorded import REPORTED, Run, shared_baselines
from trainer.metrics.registry import built_in_direction
from trainer.pages.figures import Curve, Lines, number_in_words
from trainer.pages.html import draw_cards
from trainer.pages.segments import union

REMARKS = {
    "loss": "Mean of each report interval.",
    "rate/dense": "Learning rate of the dense weights.",
    "rate/sparse": "Learning rate of the tables.",
    "samples_per_second": "All ranks together.",
    "data_wait": "Input stall: the share of the time that ranks waited for input.",
    "memory_gib": "Peak memory of rank 0 so far, in GiB.",
}
METRIC_OF_LOSS = {"binary": "log_loss", "squared": "mse", "absolute": "mae", "softmax": "cross_entropy"}
IDEAL = {"calibration": 1.0}


def draw_curves(runs: Sequence[Run]) -> str:
    """Returns the charts of runs, and names what is constant and therefore not drawn."""
    charts = curves(runs)
    constant = [chart for chart in charts if _is_constant(chart)]
    drawn = draw_cards(chart for chart in charts if chart not in constant)
    if not constant:
        return drawn
    words = ", ".join(f"{chart.title} {_values(chart)}" for chart in constant)
    return f'{drawn}\n<p class="note">Constant, and therefore not drawn: {escape(words)}.</p>'


def curves(runs: Sequence[Run]) -> list[Lines]:
    """Returns the charts of all runs, of what their trainers reported and of metrics on data.validation."""
    results = union([run.results for run in runs])
    metrics = [name.partition(" ")[2] for name in results if name.startswith("validation ")]
    of_loss = _metric_of_loss(runs, metrics)
    found = [_loss(runs, of_loss), *(_metric(runs, metric) for metric in metrics if metric != of_loss)]
    for key in REPORTED[1:]:
        found.append(Lines(key, REMARKS[key], {run.name: run.reported(key) for run in runs}))
    return [chart for chart in map(_with_enough, found) if chart.series]


def _metric_of_loss(runs: Sequence[Run], metrics: Sequence[str]) -> str | None:
    """Returns the metric that on other data is what the loss is in training; None for a sum of several losses."""
    names = {METRIC_OF_LOSS.get(loss) for run in runs for loss in _losses(run)}
    return names.pop() if len(names) == 1 and names <= {*metrics} else None


def _losses(run: Run) -> Iterator[str]:
    of_tasks = [value for key, value in run.config.items() if key.startswith("tasks.") and key.endswith(".loss")]
    yield from of_tasks or [run.config.get("model.loss", "")]


def _loss(runs: Sequence[Run], metric: str | None) -> Lines:
    """Returns the loss in training, and beside it the loss on data.validation."""
    training = {run.name: run.reported("loss") for run in runs}
    if metric is None:
        return Lines("loss", REMARKS["loss"], training)
    on_validation = _metric(runs, metric)
    words = "In training, the mean of each report interval; on data.validation, "
    if len(runs) == 1:
        series: Mapping[str, Curve] = {"training": training[runs[0].name], "validation": runs[0].during(metric)}
        (found,) = on_validation.best.values() or [None]
        best = {} if found is None else {"validation": found}
        return Lines("loss", f"{words}{metric}.", series, levels=on_validation.levels, best=best)
    faint = {f"{name}, training": name for name in training}
    return Lines(
        "loss",
        f"{words}{metric}. Training is pale.",
        {**on_validation.series, **{f"{name}, training": found for name, found in training.items()}},
        levels=on_validation.levels,
        best=on_validation.best,
        faint=faint,
    )


def _metric(runs: Sequence[Run], metric: str) -> Lines:
    """Returns a metric on data.validation, the best value of each run marked, with what baselines reach."""
    series = {run.name: run.during(metric) for run in runs}
    higher = built_in_direction(metric)
    best = {}
    if higher is not None:
        find = np.argmax if higher else np.argmin
        found = {run.name: series[run.name] for run in runs if not run.has_segments}
        best = {name: int(steps[int(find(values))]) for name, (steps, values) in found.items() if len(steps)}
    baselines = shared_baselines(runs, "validation", metric)
    ideal = {"ideal": IDEAL[name]} if (name := metric.partition("/")[0]) in IDEAL else {}
    return Lines(metric, _evaluated_on(runs), series, levels={**baselines, **ideal}, best=best)


def _evaluated_on(runs: Sequence[Run]) -> str:
    if any(run.has_segments for run in runs):
        return "On each segment, before it was trained on."
    return "On data.validation."


def _with_enough(chart: Lines) -> Lines:
    """Returns a chart without empty curves; no curve if none has two points."""
    series = {name: one for name, one in chart.series.items() if len(one[0])}
    if all(len(steps) < 2 for steps, _ in series.values()):
        series = {}
    faint = {name: of for name, of in chart.faint.items() if {name, of} <= series.keys()}
    return replace(chart, series=series, faint=faint)


def _is_constant(chart: Lines) -> bool:
    return all(np.ptp(np.asarray(values)) == 0 for _, values in chart.series.values())


def _values(chart: Lines) -> str:
    values = {name: number_in_words(float(of_steps[0])) for name, (_, of_steps) in chart.series.items()}
    if len({*values.values()}) == 1:
        return next(iter(values.values()))
    return " and ".join(f"{value} ({name})" for name, value in values.items())
