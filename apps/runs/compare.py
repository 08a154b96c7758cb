"""Puts runs side by side: configurations, metrics, speed, and their curves as a page, which one run alone gets, too."""

import json
import posixpath
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import isfinite
from statistics import mean, median, stdev
from typing import Any

from tabulate import tabulate

from apps.pages.figures import Lines
from apps.pages.html import draw_figure, whole_page
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.section import flat
from trainer.core.storage import named, refuse_existing, write_file
from trainer.metrics.registry import built_in

SEED = "train.seed"
CURVES = {
    "loss": "Mean of each report interval.",
    "samples_per_second": "All ranks together.",
    "data_wait": "Input stall: the share of the time that ranks waited for input.",
    "memory_gib": "Peak memory of rank 0 so far, in GiB.",
}
Table = list[list[str]]


@dataclass(frozen=True)
class Run:
    """A run as its directory tells of it.

    Attributes:
        name: Its name among those compared.
        config: Its configuration by key.
        facts: Its run.json.
        metrics: The lines of metrics.jsonl.
        evaluations: The lines of evaluations.jsonl.
    """

    name: str
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]

    @property
    def but_for_seed(self) -> str:
        """The configuration without the seed: equal for runs that differ in nothing else."""
        return json.dumps({key: value for key, value in self.config.items() if key != SEED}, sort_keys=True)

    @cached_property
    def results(self) -> dict[str, float]:
        """The metrics of the last evaluation on each split, by `SPLIT METRIC`, if they are finite numbers."""
        last = {line["split"]: line for line in self.evaluations}
        return {
            f"{split} {metric}": value
            for split, line in sorted(last.items(), reverse=True)  # validation, test
            for metric, value in line.items()
            if metric not in ("step", "split", "samples") and not metric.partition("/")[0].endswith("_error")
            if isinstance(value, float) and isfinite(value)
        }

    @property
    def summary(self) -> dict[str, str]:
        """State, size and speed in words."""
        later = [line["samples_per_second"] for line in self.metrics[1:]]  # the first interval warms up
        found = {
            "state": self.facts.get("state", ""),
            "step": f"{self.facts.get('step') or (self.metrics[-1]['step'] if self.metrics else 0):,}",
            "ranks": str(self.facts.get("world_size", "")),
            "device": self.facts.get("device", ""),
            "plan": self.facts.get("plan", ""),
            "samples/s": f"{median(later):,.0f}" if later else "",
            "step ms": f"{self.facts['measured']['step_ms']:.2f}" if "measured" in self.facts else "",
            "input stall": f"{mean(line['data_wait'] for line in self.metrics):.1%}" if self.metrics else "",
            "memory GiB": f"{max(line['memory_gib'] for line in self.metrics):.2f}" if self.metrics else "",
        }
        return {name: word for name, word in found.items() if word}


def compare(runs: tuple[str, ...], page: str | None = None, overwrite: bool = False) -> None:
    """Puts runs side by side: what differs in their configurations, their last metrics, their speed.

    A star marks the best value of a metric. Runs that differ in nothing but train.seed are a group, with the mean and
    the standard deviation of each metric.

    Args:
        runs: Run directories, any fsspec URL. Nothing is written to them.
        page: HTML file to draw everything to, with the curves of all runs; it opens without a server.
        overwrite: Replace a file that exists.

    Raises:
        InputError: There is no such run, or the file cannot be written.
    """
    refuse_existing({"--page": page}, overwrite)
    found = [_read(url, name) for url, name in zip(runs, _names(runs), strict=True)]
    tables = {title: rows for title, rows in _tables(found).items() if len(rows) > 1}
    print(
        "\n\n".join(f"{title}\n{tabulate(rows[1:], rows[0], disable_numparse=True)}" for title, rows in tables.items())
    )
    if page is not None:
        write_file("--page", page, _page(found, tables))
        print(f"\nwritten to {without_secrets(page)}")


def _names(urls: Sequence[str]) -> list[str]:
    """Returns short names: what the URLs have after the directories that they have in common."""
    clean = [without_secrets(url.rstrip("/")) for url in urls]
    if len({*clean}) < len(clean):
        raise InputError(f"--runs has '{max(clean, key=clean.count)}' twice; name each run once")
    parts = [url.split("/") for url in clean]
    shared = posixpath.commonprefix([part[:-1] for part in parts])
    return ["/".join(part[len(shared) :]) for part in parts]


def _read(url: str, name: str) -> Run:
    directory = RunDirectory(url, "--runs")
    with named("--runs", url):
        config, facts = directory.read("config.toml"), directory.read("run.json")
        metrics, evaluations = map(directory.read_records, ("metrics.jsonl", "evaluations.jsonl"))
    if config is None or facts is None:
        raise InputError(
            f"--runs has '{without_secrets(url)}', where there is no run; name a directory that train wrote"
        )
    keys = {".".join(path): value for path, value in flat(tomllib.loads(config)).items()}
    return Run(name, keys, json.loads(facts), metrics, evaluations)


def _tables(runs: Sequence[Run]) -> dict[str, Table]:
    """Returns tables by title, each with its header; a table without rows is of nothing."""
    return {
        "Runs": _summaries(runs),
        "Metrics": _results(runs),
        "Spread of seeds": _spread(runs),
        "Differs": _differences(runs),
    }


def _summaries(runs: Sequence[Run]) -> Table:
    summaries = [run.summary for run in runs]
    rows = _union(summaries)
    return [["", *(run.name for run in runs)], *([row, *(one.get(row, "") for one in summaries)] for row in rows)]


def _results(runs: Sequence[Run]) -> Table:
    rows: Table = [["", *(run.name for run in runs)]]
    for metric in _union([run.results for run in runs]):
        values = [run.results.get(metric) for run in runs]
        best = _best(metric, [value for value in values if value is not None]) if len(runs) > 1 else None
        rows.append([metric, *("" if value is None else f"{value:.5f}{' *' * (value == best)}" for value in values)])
    return rows


def _best(metric: str, values: Sequence[float]) -> float | None:
    """Returns the best value of a metric, None if it has no direction."""
    known = built_in(metric.partition(" ")[2].partition("/")[0])
    if known is None or known[0].higher_is_better is None:
        return None
    return max(values) if known[0].higher_is_better else min(values)


def _spread(runs: Sequence[Run]) -> Table:
    """Returns the mean and the standard deviation of each metric over the seeds of each group of runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.but_for_seed, []).append(run)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return [[]]
    rows: Table = [["", *(", ".join(run.name for run in group) for group in several)]]
    for metric in _union([run.results for group in several for run in group]):
        cells = []
        for group in several:
            values = [run.results[metric] for run in group if metric in run.results]
            cells.append(f"{mean(values):.5f} ± {stdev(values):.5f}" if len(values) > 1 else "")
        rows.append([metric, *cells])
    return rows


def _differences(runs: Sequence[Run]) -> Table:
    """Returns the keys of the configurations that are not equal in all runs."""
    keys = [
        key for key in _union([run.config for run in runs]) if len({_shown(run.config.get(key)) for run in runs}) > 1
    ]
    return [
        ["key", *(run.name for run in runs)],
        *([key, *(_shown(run.config.get(key)) for run in runs)] for key in keys),
    ]


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value) if isinstance(value, list | bool) else str(value)


def _union(maps: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for one in maps for key in one))


def _page(runs: Sequence[Run], tables: Mapping[str, Table]) -> str:
    title = f"{runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs side by side"
    parts = [f"<h1>{escape(title)}</h1>"]
    for name, rows in tables.items():
        lines = [("th", rows[0]), *(("td", row) for row in rows[1:])]
        cells = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in lines)
        parts.append(
            f'<h2>{name}</h2><div class="wide"><table>{"".join(f"<tr>{row}</tr>" for row in cells)}</table></div>'
        )
    return whole_page(title, [*parts, *map(draw_figure, _figures(runs))])


def _figures(runs: Sequence[Run]) -> list[Lines]:
    """Returns the curves of all runs, of what their trainers reported and of metrics on data.validation."""
    reported = {key: {run.name: _curve(run.metrics, key) for run in runs} for key in CURVES}
    during = {run.name: [line for line in run.evaluations if line["split"] == "validation"] for run in runs}
    metrics = [
        name.partition(" ")[2] for name in _union([run.results for run in runs]) if name.startswith("validation ")
    ]
    evaluated = {metric: {name: _curve(lines, metric) for name, lines in during.items()} for metric in metrics}
    drawn = []
    for key, curves in {"loss": reported.pop("loss"), **evaluated, **reported}.items():
        series = {name: curve for name, curve in curves.items() if len(curve[0]) > 1}
        if series:
            drawn.append(Lines(key, CURVES.get(key, "On data.validation."), series))
    return drawn


def _curve(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Returns steps and values where there is a finite one."""
    found = {line["step"]: line[key] for line in lines if isinstance(line.get(key), float) and isfinite(line[key])}
    return [*found], [*found.values()]
