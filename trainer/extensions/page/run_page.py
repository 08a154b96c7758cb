"""The page of a run: an HTML file made from the files in the run directory. Free of torch."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import isfinite, nan
from typing import Any

import numpy as np

from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.section import flat
from trainer.pages.figures import Lines
from trainer.pages.html import draw_figure, draw_table, whole_page
from trainer.pages.segments import Table, is_bound, segments_table, union

CURVES = {
    "loss": "Mean of each report interval.",
    "rate/dense": "Learning rate of the dense weights.",
    "rate/sparse": "Learning rate of the tables.",
    "samples_per_second": "All ranks together.",
    "data_wait": "Input stall: the share of the time that ranks waited for input.",
    "memory_gib": "Peak memory of rank 0 so far, in GiB.",
}


@dataclass(frozen=True)
class Run:
    """A run, read from its directory.

    Attributes:
        name: Its name on the page.
        config: Its configuration by key.
        facts: Its run.json.
        metrics: The numbers of metrics.jsonl that a page shows, NaN where there is none; an array for each key.
        evaluations: The lines of evaluations.jsonl.
    """

    name: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    metrics: Mapping[str, np.ndarray]
    evaluations: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, directory: RunDirectory, name: str) -> "Run | None":
        """Reads a run; None if there is none."""
        config, facts = directory.read_toml("config.toml"), directory.facts()
        if config is None or directory.read_bytes("run.json") is None:
            return None
        keys = {".".join(path): value for path, value in flat(config).items()}
        metrics = _columns(directory.records("metrics.jsonl"), ("step", *CURVES))
        return cls(name, keys, facts, metrics, directory.read_records("evaluations.jsonl"))

    @cached_property
    def results(self) -> dict[str, float]:
        """The metrics of the last evaluation on each split, by `SPLIT METRIC`, if they are finite numbers."""
        last = {line["split"]: line for line in self.evaluations}
        return {
            f"{split} {metric}": value
            for split, line in sorted(last.items(), reverse=True)  # validation, test
            for metric, value in line.items()
            if metric not in ("step", "split", "samples") and not is_bound(metric)
            if isinstance(value, float) and isfinite(value)
        }

    @property
    def summary(self) -> dict[str, str]:
        """State, size and speed in words."""
        measured = self.facts.get("measured", {})
        steps, later = self.metrics["step"], self.metrics["samples_per_second"][1:]  # the first interval warms up
        found = {
            "state": self.facts.get("state", ""),
            "step": f"{self.facts.get('step') or (int(steps[-1]) if len(steps) else 0):,}",
            "ranks": str(self.facts.get("world_size", "")),
            "device": self.facts.get("device", ""),
            "plan": self.facts.get("plan", ""),
            "samples/s": f"{np.median(later):,.0f}" if len(later) else "",
            "step ms": f"{measured['step_ms']:.2f}" if "step_ms" in measured else "",
            "input stall": f"{self.metrics['data_wait'].mean():.1%}" if len(steps) else "",
            "memory GiB": f"{self.metrics['memory_gib'].max():.2f}" if len(steps) else "",
        }
        return {name: word for name, word in found.items() if word}


def page_of_run(run: Run, directory: RunDirectory, checkpoints: Checkpoints) -> str:
    """Returns the page of a run: how it stands, its curves, and where it came from."""
    tables = {
        "Run": [["", run.name], *([key, word] for key, word in run.summary.items())],
        "Metrics": [["", run.name], *([metric, f"{value:.5f}"] for metric, value in run.results.items())],
        "Segments": segments_table(directory.read_records("segments.jsonl")),
        "Starts": _starts(run.facts),
        "Checkpoints": [["step", "directory"], *([f"{step:,}", checkpoints.url(step)] for step in checkpoints.steps())],
        "Plan": _plan(directory),
        "Environment": [["", ""], *_environment(run.facts)],
        "Configuration": [["key", "value"], *([key, without_secrets(str(value))] for key, value in run.config.items())],
    }
    drawn = {title: draw_table(title, rows) for title, rows in tables.items() if len(rows) > 1}
    above = [drawn.pop(title, "") for title in ("Run", "Metrics")]
    figures = map(draw_figure, curves([run]))
    return whole_page(run.name, [f"<h1>{escape(run.name)}</h1>", *above, *figures, *drawn.values()])


def curves(runs: Sequence[Run]) -> list[Lines]:
    """Returns the curves of all runs, of what their trainers reported and of metrics on data.validation."""
    reported = {key: {run.name: _curve(run.metrics, key) for run in runs} for key in CURVES}
    during = {run.name: [line for line in run.evaluations if line["split"] == "validation"] for run in runs}
    metrics = [
        name.partition(" ")[2] for name in union([run.results for run in runs]) if name.startswith("validation ")
    ]
    evaluated = {
        metric: {name: _curve(_columns(lines, ("step", metric)), metric) for name, lines in during.items()}
        for metric in metrics
    }
    drawn = []
    for key, found in {"loss": reported.pop("loss"), **evaluated, **reported}.items():
        series = {name: curve for name, curve in found.items() if len(curve[0]) > 1}
        if series:
            drawn.append(Lines(key, CURVES.get(key, _evaluated_on(runs)), series))
    return drawn


def _evaluated_on(runs: Sequence[Run]) -> str:
    if any(run.config.get("data.segments.path") for run in runs):
        return "On each segment, before it was trained on."
    return "On data.validation."


def _columns(lines: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns an array for each key, `[L]` float64: as objects, ten million lines would need 15 GB."""
    columns = {key: array("d") for key in keys}
    for line in lines:
        for key, column in columns.items():
            value = line.get(key)
            column.append(value if isinstance(value, float | int) else nan)
    return {key: np.array(column) for key, column in columns.items()}


def _curve(columns: Mapping[str, np.ndarray], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns steps and values where there is a finite one."""
    there = np.isfinite(columns[key])
    return columns["step"][there].astype(np.int64), columns[key][there]


def _starts(facts: Mapping[str, Any]) -> Table:
    starts = facts.get("starts", [])
    rows = [
        [one.get("time", ""), f"{one.get('step', 0):,}", *(str(one.get(key, "")) for key in ("ranks", "host", "after"))]
        for one in starts
    ]
    return [["time", "after step", "ranks", "host of rank 0", "the attempt before"], *rows]


def _plan(directory: RunDirectory) -> Table:
    rows = [
        [table, _shape(one), *(str(one.get(key, "")) for key in ("sharding_type", "compute_kernel", "ranks"))]
        for tables in (directory.read_json("plan.json") or {}).get("modules", {}).values()
        for table, one in tables.items()
    ]
    return [["table", "shape", "sharding type", "kernel", "ranks"], *rows]


def _shape(table: Mapping[str, Any]) -> str:
    sizes = [table[key] for key in ("rows", "columns") if key in table]  # a plan by hand need not have them
    return f"{sizes[0]:,} x {sizes[1]}" if len(sizes) == 2 else ""


def _environment(facts: Mapping[str, Any]) -> Table:
    versions = ", ".join(f"{name} {number}" for name, number in facts.get("versions", {}).items())
    return [["command", without_secrets(facts.get("command", ""))], ["versions", versions]]
