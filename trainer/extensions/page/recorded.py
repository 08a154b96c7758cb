"""A run as its directory records it: configuration, facts, metrics, baselines. Free of torch."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import isfinite, nan
from typing import Any

import numpy as np

from trainer.config.root import Config
from trainer.core.errors import DamagedError
from trainer.core.run_directory import RunDirectory, pass_over
from trainer.core.secrets import without_secrets
from trainer.core.section import flat, follow
from trainer.pages.figures import Curve
from trainer.pages.segments import is_bound

REPORTED = ("loss", "rate/dense", "rate/sparse", "samples_per_second", "data_wait", "memory_gib")
NO_DEFAULT = object()


@dataclass(frozen=True)
class Run:
    """A run, read from its directory.

    Attributes:
        name: Its name on the page.
        config: Its configuration by key.
        facts: Its run.json.
        metrics: The numbers of metrics.jsonl that a page shows, NaN where there is none; an array for each key.
        evaluations: The lines of evaluations.jsonl.
        plan: The tables of its plan by name.
        baselines: Its baselines.json, empty if there is none.
    """

    name: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    metrics: Mapping[str, np.ndarray]
    evaluations: Sequence[Mapping[str, Any]]
    plan: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    baselines: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: RunDirectory, name: str) -> "Run | None":
        """Reads a run; None if there is none."""
        config, facts = directory.read_toml("config.toml"), directory.facts()
        if config is None or directory.read_bytes("run.json") is None:
            return None
        return cls(
            name=name,
            config={".".join(path): value for path, value in flat(config).items()},
            facts=facts,
            metrics=columns(directory.records("metrics.jsonl"), ("step", "time", *REPORTED)),
            evaluations=directory.read_records("evaluations.jsonl"),
            plan={
                table: one
                for tables in (directory.read_json("plan.json") or {}).get("modules", {}).values()
                for table, one in tables.items()
            },
            baselines=read_if_whole(directory, "baselines.json"),
        )

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
    def has_segments(self) -> bool:
        """Whether it is evaluated on each segment of its data, so that no two of its evaluations compare."""
        return bool(self.config.get("data.segments.path"))

    @property
    def evaluated_at(self) -> dict[str, int]:
        """The step of the last evaluation on each split."""
        return {line["split"]: line["step"] for line in self.evaluations}

    @property
    def summary(self) -> dict[str, str]:
        """State, origin, size and speed in words."""
        measured = self.facts.get("measured", {})
        steps, later = self.metrics["step"], self.metrics["samples_per_second"][1:]  # the first interval warms up
        found = {
            "state": self.facts.get("state", ""),
            **self._time(),
            "step": f"{self.facts.get('step') or (int(steps[-1]) if len(steps) else 0):,}",
            "data": without_secrets(self._data()),
            "model": str(self.config.get("model.name", "")),
            "parameters": self._parameters(),
            "ranks": str(self.facts.get("world_size", "")),
            "device": self.facts.get("device", ""),
            "plan": self.facts.get("plan", ""),
            "samples/s": f"{np.median(later):,.0f}" if len(later) else "",
            "step ms": f"{measured['step_ms']:.2f}" if "step_ms" in measured else "",
            "input stall": f"{self.metrics['data_wait'].mean():.1%}" if len(steps) else "",
            "memory GiB": f"{self.metrics['memory_gib'].max():.2f}" if len(steps) else "",
        }
        return {name: word for name, word in found.items() if word}

    def _time(self) -> dict[str, str]:
        """Returns the first start, and the time from there to the last report, with all pauses between attempts."""
        first = next((start["time"] for start in self.facts.get("starts", []) if start.get("time")), None)
        if first is None:
            return {}
        started, reports = datetime.fromisoformat(first), self.metrics["time"][np.isfinite(self.metrics["time"])]
        found = {"started": f"{started.astimezone(UTC):%Y-%m-%d %H:%M} UTC"}
        if len(reports):
            seconds = max(1, round(reports[-1] - started.timestamp()))
            found["duration"] = str(timedelta(seconds=seconds))
        return found

    def _data(self) -> str:
        """Returns the first path of the training data."""
        paths = self.config.get("data.train") or [self.config.get("data.segments.path", "")]
        return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")

    def _parameters(self) -> str:
        sizes = [one["rows"] * one["columns"] for one in self.plan.values() if {"rows", "columns"} <= one.keys()]
        return f"{sum(sizes):,} in {len(sizes)} {'table' if len(sizes) == 1 else 'tables'}" if sizes else ""

    def during(self, metric: str) -> Curve:
        """Returns steps and values of a metric on data.validation."""
        lines = (line for line in self.evaluations if line["split"] == "validation")
        return curve(columns(lines, ("step", metric)), metric)

    def reported(self, key: str) -> Curve:
        """Returns steps and values of what the trainer reported, one value for each report interval.

        An interval that the end of training or of a segment has cut short is left out: its mean is of few samples.
        """
        steps = self.metrics["step"]
        gaps = np.diff(steps, prepend=0)
        around = np.maximum(np.roll(gaps, 1), np.append(gaps[1:], 0))
        whole = (2 * gaps >= around) | (np.arange(len(steps)) == 0)
        return curve({name: values[whole] for name, values in self.metrics.items()}, key)

    def baseline_of(self, split: str, metric: str) -> dict[str, float]:
        """Returns the values of a metric that baselines reach on a split, by the baseline's name."""
        tasks = self.baselines.get(split, {})
        name, _, task = metric.partition("/")
        if not task and len(tasks) == 1:
            (task,) = tasks
        found = tasks.get(task, {}).get(name, {})
        return {of: value for of, value in found.items() if isinstance(value, float | int) and isfinite(value)}

    @property
    def set_keys(self) -> dict[str, Any]:
        """The keys of the configuration that are not at their defaults."""
        return {key: value for key, value in self.config.items() if value != default_of(key)}


def default_of(key: str) -> Any:
    """Returns the default of a key of the configuration; NO_DEFAULT if it has none, or no key has this name."""
    _, found, _ = follow(Config, tuple(key.split(".")))
    return NO_DEFAULT if found is None or found.is_required() else found.get_default(call_default_factory=True)


def entry_of(key: str) -> tuple[str, ...]:
    """Returns the path of the feature, task or other named thing that a key belongs to; empty for other keys."""
    path = tuple(key.split("."))
    return follow(Config, path)[2] if len(path) > 2 else ()


def read_if_whole(directory: RunDirectory, name: str) -> dict[str, Any]:
    """Returns the content of a JSON file beside the run's own files; empty if there is none or it is damaged."""
    try:
        return directory.read_json(name) or {}
    except DamagedError as error:
        pass_over(error)
        return {}


def columns(lines: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns an array for each key, `[L]` float64: as objects, ten million lines would need 15 GB."""
    found = {key: array("d") for key in keys}
    for line in lines:
        for key, column in found.items():
            value = line.get(key)
            column.append(value if isinstance(value, float | int) else nan)
    return {key: np.array(column) for key, column in found.items()}


def curve(found: Mapping[str, np.ndarray], key: str) -> Curve:
    """Returns steps and values where there is a finite one."""
    there = np.isfinite(found[key])
    return found["step"][there].astype(np.int64), found[key][there]


def shared_baselines(runs: Sequence[Run], split: str, metric: str) -> dict[str, float]:
    """Returns what baselines reach, if it is the same for all runs that have baselines; else empty."""
    known = [found for run in runs if (found := run.baseline_of(split, metric))]
    return known[0] if known and all(found == known[0] for found in known) else {}
