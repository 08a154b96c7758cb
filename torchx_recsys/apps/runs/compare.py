"""Compares runs: configurations, metrics, speed, and curves as a page, also of a single run."""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import mean, stdev
from typing import Any

from tabulate import tabulate

from trainer.checkpoint.store import Checkpoints
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import named, refuse_existing, write_file
from trainer.extensions.page.curves import draw_curves
from trainer.extensions.page.recorded import (
    NO_DEFAULT,
    Run,
    default_of,
    entry_of,
    shared_baselines,
)
from trainer.extensions.page.run_page import page_of_run
from trainer.metrics.registry import built_in_direction
from trainer.pages.html import draw_table, whole_page
from trainer.pages.segments import Table, union

SEED = "train.seed"
EVALUATED = ("data.labels", "data.weight", "data.select.filter", "data.catalogue.items", "data.catalogue.exclude")
LABELS = re.compile(r"tasks\..*\.(label|where\..*|group)")


def compare(runs: tuple[str, ...], page: str | None = None, overwrite: bool = False) -> None:
    """Compares runs: differences of their configurations, last metrics, speed.

    A star marks the best value of a metric, if all runs were evaluated on the same data. Runs that differ only in
    train.seed are a group, with the mean and the standard deviation of each metric. Beside the metrics stands the best
    of the simple predictors that data.baselines has measured.

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
    remarks = [*_unlike(found)]
    print(
        "\n\n".join(f"{title}\n{tabulate(rows[1:], rows[0], disable_numparse=True)}" for title, rows in tables.items())
    )
    print("".join(f"\n{remark}" for remark in remarks), end="\n" * bool(remarks))
    if page is not None:
        write_file("--page", page, _page(found, tables, remarks) if len(runs) > 1 else _page_of_one(found[0], runs[0]))
        print(f"\nwritten to {without_secrets(page)}")


def _names(urls: Sequence[str]) -> list[str]:
    """Returns short names: the URLs without their common directories."""
    clean = [without_secrets(url.rstrip("/")) for url in urls]
    if len({*clean}) < len(clean):
        raise InputError(f"--runs has '{max(clean, key=clean.count)}' twice; name each run once")
    parts = [url.split("/") for url in clean]
    shared = posixpath.commonprefix([part[:-1] for part in parts])
    return ["/".join(part[len(shared) :]) for part in parts]


def _read(url: str, name: str) -> Run:
    with named("--runs", url):
        run = Run.of(RunDirectory(url, "--runs"), name)
    if run is None:
        raise InputError(f"--runs has {place(url)}, where there is no run; name a directory that train wrote")
    return run


def _tables(runs: Sequence[Run]) -> dict[str, Table]:
    """Returns tables by title, each with its header; a table without rows is left out."""
    return {
        "Metrics": _results(runs),
        "Spread of seeds": _spread(runs),
        "Differs": _differences(runs),
        "Runs": _summaries(runs),
    }


def _summaries(runs: Sequence[Run]) -> Table:
    summaries = [run.summary for run in runs]
    rows = union(summaries)
    return [["", *(run.name for run in runs)], *([row, *(one.get(row, "") for one in summaries)] for row in rows)]


def _results(runs: Sequence[Run]) -> Table:
    """Returns the last metrics of each run, with a star at the best, and the best that baselines reach."""
    rows: Table = [["", *(run.name for run in runs)]]
    for split in _evaluated(runs):
        steps = [f"{run.evaluated_at[split]:,}" if split in run.evaluated_at else "" for run in runs]
        if len({*filter(None, steps)}) > 1:
            rows.append([f"{split}, at step", *steps])
    for metric in union([run.results for run in runs]):
        values = [run.results.get(metric) for run in runs]
        best = _best(metric, [value for value in values if value is not None]) if len(runs) > 1 else None
        if _differing(runs, metric.partition(" ")[0]):
            best = None
        rows.append([metric, *("" if value is None else f"{value:.5f}{' *' * (value == best)}" for value in values)])
    baselines = [_best_baseline(runs, row[0]) for row in rows[1:]]
    if any(baselines):
        rows = [[*row, cell] for row, cell in zip(rows, ["best baseline", *baselines], strict=True)]
    return rows


def _best_baseline(runs: Sequence[Run], metric: str) -> str:
    split, _, name = metric.partition(" ")
    found, higher = shared_baselines(runs, split, name), built_in_direction(name)
    if not found or higher is None:
        return ""
    of, value = (max if higher else min)(found.items(), key=lambda one: one[1])
    return f"{value:.5f} {of}"


def _best(metric: str, values: Sequence[float]) -> float | None:
    """Returns the best value of a metric, None if it has no direction."""
    higher = built_in_direction(metric.partition(" ")[2])
    return None if higher is None else max(values) if higher else min(values)


def _evaluated(runs: Sequence[Run]) -> list[str]:
    return [split for split in ("validation", "test") if any(split in run.evaluated_at for run in runs)]


def _differing(runs: Sequence[Run], split: str) -> list[str]:
    """Returns the keys in which the runs that were evaluated on a split have other rows, labels or weights there."""
    there = [run.config for run in runs if split in run.evaluated_at]
    keys = [key for key in union(there) if key in (f"data.{split}", *EVALUATED) or LABELS.fullmatch(key)]
    return [key for key in keys if len({_shown(config.get(key, default_of(key))) for config in there}) > 1]


def _unlike(runs: Sequence[Run]) -> Iterator[str]:
    """Yields for each split why its metrics cannot be compared."""
    for split in _evaluated(runs):
        if keys := _differing(runs, split):
            yield f"Metrics of {split} have no star, as the runs differ in {', '.join(keys)}."


def _spread(runs: Sequence[Run]) -> Table:
    """Returns the mean and the standard deviation of each metric over the seeds of each group of runs."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_but_for_seed(run), []).append(run)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return [[]]
    rows: Table = [["", *(", ".join(run.name for run in group) for group in several)]]
    for metric in union([run.results for group in several for run in group]):
        cells = []
        for group in several:
            values = [run.results[metric] for run in group if metric in run.results]
            cells.append(f"{mean(values):.5f} ± {stdev(values):.5f}" if len(values) > 1 else "")
        rows.append([metric, *cells])
    return rows


def _but_for_seed(run: Run) -> str:
    """Returns the configuration without the seed, equal for runs that differ only in the seed."""
    return json.dumps({key: value for key, value in run.config.items() if key != SEED}, sort_keys=True)


def _differences(runs: Sequence[Run]) -> Table:
    """Returns the keys of the configurations that are not equal in all runs, where some run has set them.

    A key that a run lacks has its default there, as one that a later version has added. A feature or a task that a run
    lacks is one row with the names, and none of its keys.
    """
    named = {key: entry_of(key) for key in union([run.config for run in runs])}
    rows: Table = []
    for section in union([{".".join(entry[:-1]): 0} for entry in named.values() if entry]):
        names = [
            ", ".join(dict.fromkeys(named[key][-1] for key in run.config if ".".join(named[key][:-1]) == section))
            for run in runs
        ]
        if len({*names}) > 1:
            rows.append([section, *names])
    everywhere = [{named[key] for key in run.config} for run in runs]
    for key, entry in named.items():
        values = [_shown(run.config.get(key, default_of(key))) for run in runs]
        if len({*values}) > 1 and (not entry or all(entry in entries for entries in everywhere)):
            rows.append([key, *values])
    return [["key", *(run.name for run in runs)], *rows]


def _shown(value: Any) -> str:
    if value is None or value is NO_DEFAULT:
        return ""
    return json.dumps(value) if isinstance(value, list | bool) else str(value)


def _page_of_one(run: Run, url: str) -> str:
    with named("--runs", url):
        directory = RunDirectory(url, "--runs")
        return page_of_run(run, directory, Checkpoints(directory))


def _page(runs: Sequence[Run], tables: Mapping[str, Table], remarks: Sequence[str]) -> str:
    title = f"{len(runs)} runs side by side"
    metrics, *others = (draw_table(name, rows) for name, rows in tables.items())
    notes = [f'<p class="note">{escape(remark)}</p>' for remark in remarks]
    return whole_page(title, [f"<h1>{title}</h1>", *notes, metrics, "<h2>Curves</h2>", draw_curves(runs), *others])
