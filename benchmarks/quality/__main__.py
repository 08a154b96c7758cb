"""Trains what `check-data --write-config` writes on public data sets, beside linear models, boosted trees and means.

Writes docs/explanation/first_configurations.md.
Takes half an hour of a quiet machine, and 100 MB of packages, which are downloaded and not installed.

`--only NAME` takes one data set, `--seeds N` as many seeds, and `--packages DIR` has the packages. Needs scikit-learn.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.quality.beside import Scores, baselines
from benchmarks.quality.sets import PACKAGES, SETS, DataSet, download
from docs.generate import ROOT, table, write_measured
from trainer.commands import read_command
from trainer.core.errors import InputError

PAGE = ROOT / "docs" / "explanation" / "first_configurations.md"
SHOWN = {"binary": "auc", "values": "rmse", "classes": "cross_entropy", "items": "recall@10"}
BESIDE = ("linear", "trees", "means", "popularity")
LOWER = ("rmse", "cross_entropy")


def main() -> None:
    """Measures the data sets and rewrites the table, or prints what is measured of some."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[*SETS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--packages", type=Path, default=ROOT / ".packages")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--flags", default="", help="more words for train")
    parser.add_argument("--without-baselines", action="store_true")
    given = parser.parse_args()
    download(given.packages, PACKAGES)
    results = {}
    for name in given.only:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(SETS[name], Path(folder), given)
        print(name, json.dumps(results[name]), flush=True)
        if given.json:
            given.json.write_text(json.dumps(results))
    if given.only == [*SETS]:
        write_measured(PAGE, "quality", render(results))


def measure(one: DataSet, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Returns the metrics of the written configuration with each seed, and of the baselines."""
    splits = one.splits(given.packages)
    for split, rows in splits.items():
        pq.write_table(rows, folder / f"{split}.parquet", row_group_size=max(1, rows.num_rows // 16))
    config = folder / "first.toml"
    words = ["--source", str(folder), "--label", one.label, "--write-config", str(config)]
    try:
        read_command(["check-data", *words])()
    except InputError as error:
        return {"ours": str(error)} | baselines(one, splits)
    found = {"ours": [train(config, folder / f"run-{seed}", seed, given.flags.split()) for seed in range(given.seeds)]}
    return found if given.without_baselines else found | baselines(one, splits)


def train(config: Path, out: Path, seed: int, flags: list[str]) -> Scores:
    """Trains as a user would; returns the metrics of the test split, and the last step."""
    read_command(["train", str(config), "--out", str(out), "--train.seed", str(seed), *flags])()
    lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    (test,) = [line for line in lines if line["split"] == "test"]
    last = float(max(line["step"] for line in lines))
    return {key: value for key, value in test.items() if isinstance(value, float)} | {"last_step": last}


def render(results: dict[str, Any]) -> str:
    """Returns the table: the metric that is judged, medians with the least and the greatest of the seeds."""
    rows, seeds = [], set()
    for name, result in results.items():
        metric, ours = SHOWN[SETS[name].task], result["ours"]
        seeds.add(len(ours))
        calibration = [one["calibration"] for one in ours if "calibration" in one]
        shown = [_spread([one[metric] for one in ours]), f"{np.median(calibration):.3f}" if calibration else ""]
        shown += [f"{result[one][metric]:.4f}" if one in result else "" for one in BESIDE]
        rows.append([name, f"{metric}{', lower is better' * (metric in LOWER)}", *shown])
    head = ["Data", "Metric on test", "First configuration", "Calibration", *(name.capitalize() for name in BESIDE)]
    return f"{table(head, rows)}\n\n{_of_seeds(min(seeds))}"


def _spread(values: list[float]) -> str:
    spread = f" ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
    return f"{np.median(values):.4f}{spread}"


def _of_seeds(seeds: int) -> str:
    return "One seed." if seeds == 1 else f"The median of {seeds} seeds, the least and the greatest beside it."


if __name__ == "__main__":
    main()
