"""Trains on the splits of published tables, and puts what comes out beside what is published.

Writes docs/explanation/published_tables.md.
Takes half an hour of a quiet machine, and 25 MB of packages, which are downloaded and not installed.

`--only NAME` takes one of recommenders, surprise and dcn_v2, `--seeds N` as many seeds, and `--packages DIR` has the
packages. With `--choose` a part of train is held back and tested on, by which the configurations were chosen; it only
prints the scores, as does `--flags`, with more words for train.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.quality.sets import download
from benchmarks.tables import dcn_v2, recommenders, surprise
from benchmarks.tables.data import PACKAGES
from benchmarks.tables.published import HERE, Published
from benchmarks.tables.scores import Scores
from docs.generate import ROOT, table, write_measured

PAGE = ROOT / "docs" / "explanation" / "published_tables.md"
TABLES = {"recommenders": recommenders.TABLE, "surprise": surprise.TABLE, "dcn_v2": dcn_v2.TABLE}
VERSIONS = ("torch", "torchrec", "fbgemm-gpu-cpu")


def main() -> None:
    """Measures tables and rewrites them, or prints the scores of a trial."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", choices=TABLES, default=[*TABLES])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--packages", type=Path, default=ROOT / ".packages")
    parser.add_argument("--choose", action="store_true", help="test on a part of train")
    parser.add_argument("--flags", default="", help="more words for train")
    given = parser.parse_args()
    download(given.packages, PACKAGES)
    for name in given.only:
        found = measure(TABLES[name], given)
        if not (given.choose or given.flags):
            write_measured(PAGE, name, render(TABLES[name], found))


def measure(published: Published, given: argparse.Namespace) -> dict[str, list[Scores]]:
    """Returns the scores of our configurations with each seed."""
    found: dict[str, list[Scores]] = {}
    with tempfile.TemporaryDirectory() as folder:
        parts = [*published.prepare(given.packages, Path(folder), given.choose)]
        of_parts = [published.baselines(part) for part in parts]
        for name in of_parts[0]:
            found[f"baseline {name}"] = [_mean(published, [one[name] for one in of_parts])]
        for name, config in published.ours.items():
            found[name] = []
            for seed in range(given.seeds):
                flags = ["--train.seed", str(seed), *given.flags.split()]
                scores = [
                    published.measure(part, HERE / f"{config}.toml", part / f"{config}-{seed}", flags) for part in parts
                ]
                found[name].append(_mean(published, scores))
                print(name, seed, json.dumps(found[name][-1]), flush=True)
    return found


def _mean(published: Published, scores: list[Scores]) -> Scores:
    return {metric: float(np.mean([one[metric] for one in scores])) for metric in published.metrics}


def render(published: Published, found: dict[str, list[Scores]]) -> str:
    """Returns the published rows with ours among them, the best first."""
    rows = [(scores[0], [name, *(f"{score:.4g}" for score in scores)]) for name, scores in published.rows.items()]
    for name, scores in found.items():
        shown = [f"**{cell}**" for cell in _spreads(published, scores)]
        rows.append((float(np.mean([one[published.metrics[0]] for one in scores])), [f"**ours, {name}**", *shown]))
    rows.sort(key=lambda row: row[0], reverse=not published.lower)
    heads = ["Model", *published.metrics]
    seeds = max(map(len, found.values()))
    what = "one seed" if seeds == 1 else f"the mean of {seeds} seeds, the least and the greatest beside it"
    return (
        f"{table(heads, [cells for _, cells in rows])}\n\n"
        f"Published by {published.source}. Ours: {what}; "
        f"{date.today()}, {', '.join(f'{name} {version(name)}' for name in VERSIONS)}."
    )


def _spreads(published: Published, scores: list[Scores]) -> Iterator[str]:
    for metric in published.metrics:
        values = [one[metric] for one in scores]
        spread = f" ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
        yield f"{np.mean(values):.4f}{spread}"


if __name__ == "__main__":
    main()
