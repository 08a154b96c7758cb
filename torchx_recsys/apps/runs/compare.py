"""Compares runs: configurations, metrics, speed, and curves as a page, also of a single run."""

import json
import posixpath
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from tabulate import tabulate

from trainer.checkpoint.store import Checkpoints
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import named, refuse_existing, write_file
from trainer.extensions.page.run_page import Run, curves, page_of_run
from trainer.metrics.registry import built_in
from trainer.pages.html import draw_figure, draw_table, whole_page
from trainer.pages.segments import Table, union

SEED = "train.seed"


def compare(runs: tuple[str, ...], page: str | None = None, overwrite: bool = False) -> None:
    """Compares runs: differences of their configurations, last metrics, speed.

    A star marks the best value of a metric. Runs that differ only in train.seed are a group, with the mean and
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
        write_file("--page", page, _page(found, tables) if len(runs) > 1 else _page_of_one(found[0], runs[0]))
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
        "Runs": _summaries(runs),
        "Metrics": _results(runs),
        "Spread of seeds": _spread(runs),
        "Differs": _differences(runs),
    }


def _summaries(runs: Sequence[Run]) -> Table:
    summaries = [run.summary for run in runs]
    rows = union(summaries)
    return [["", *(run.name for run in runs)], *([row, *(one.get(row, "") for one in summaries)] for row in rows)]


def _results(runs: Sequence[Run]) -> Table:
    rows: Table = [["", *(run.name for run in runs)]]
    for metric in union([run.results for run in runs]):
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
    """Returns the keys of the configurations that are not equal in all runs."""
    keys = [
        key for key in union([run.config for run in runs]) if len({_shown(run.config.get(key)) for run in runs}) > 1
    ]
    return [
        ["key", *(run.name for run in runs)],
        *([key, *(_shown(run.config.get(key)) for run in runs)] for key in keys),
    ]


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value) if isinstance(value, list | bool) else str(value)


def _page_of_one(run: Run, url: str) -> str:
    with named("--runs", url):
        directory = RunDirectory(url, "--runs")
        return page_of_run(run, directory, Checkpoints(directory))


def _page(runs: Sequence[Run], tables: Mapping[str, Table]) -> str:
    title = f"{len(runs)} runs side by side"
    drawn = (draw_table(name, rows) for name, rows in tables.items())
    return whole_page(title, [f"<h1>{title}</h1>", *drawn, *map(draw_figure, curves(runs))])
