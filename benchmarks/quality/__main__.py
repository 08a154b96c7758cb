"""Trains what `check-data --write-config` writes on public data sets, beside the baselines of the same configuration.

Writes docs/explanation/first_configurations.md.
Takes half an hour of a quiet machine, and 100 MB of packages, which are downloaded and not installed.

`--only NAME` takes one data set, `--seeds N` as many seeds, and `--packages DIR` has the packages. `--json FILE` keeps
what is measured, and a later call measures what is not in it. Needs scikit-learn and LightGBM.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.quality.sets import PACKAGES, SETS, DataSet, download
from docs.generate import ROOT, table, write_measured
from trainer.commands import read_command

PAGE = ROOT / "docs" / "explanation" / "first_configurations.md"
SHOWN = {"binary": "auc", "values": "rmse", "classes": "cross_entropy", "items": "recall@10"}
LOWER = ("rmse", "cross_entropy")
BASELINES = {
    "Linear": ("logistic regression", "linear regression"),
    "LightGBM": ("LightGBM",),
    "Means": ("user and item means",),
    "Factors": ("matrix factorization",),
    "Popularity": ("popularity",),
    "Item-kNN": ("item-kNN",),
}
Scores = dict[str, float]


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
    results = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    for name in [name for name in given.only if name not in results]:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(SETS[name], Path(folder), given)
        print(name, json.dumps(results[name]), flush=True)
        if given.json:
            given.json.write_text(json.dumps(results))
    if results.keys() == SETS.keys():
        write_measured(PAGE, "quality", render(results))


def measure(one: DataSet, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Returns the metrics of the written configuration with each seed, and of the baselines."""
    splits = one.splits(given.packages)
    for split, rows in splits.items():
        pq.write_table(rows, folder / f"{split}.parquet", row_group_size=max(1, rows.num_rows // 16))
    config = folder / "first.toml"
    words = ["--source", str(folder), "--label", one.label, "--write-config", str(config)]
    read_command(["check-data", *words])()
    ours = [train(config, folder / f"run-{seed}", seed, given.flags.split()) for seed in range(given.seeds)]
    return {"ours": ours} | ({} if given.without_baselines else baselines(config))


def baselines(config: Path) -> dict[str, Scores]:
    """Returns the metrics of the test split by baseline."""
    names = [name for names in BASELINES.values() for name in names]
    found = read_command(["baselines", str(config), "--only", *names])()
    (of_metrics,) = found["test"].values()
    scores: dict[str, Scores] = {}
    for metric, values in of_metrics.items():
        for name, value in values.items():
            scores.setdefault(name, {})[metric] = value
    return scores


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
    for name, one in SETS.items():
        result = results[name]
        metric, ours = SHOWN[one.task], result["ours"]
        seeds.add(len(ours))
        calibration = [seed["calibration"] for seed in ours if "calibration" in seed]
        shown = [_spread([seed[metric] for seed in ours]), f"{np.median(calibration):.3f}" if calibration else ""]
        shown += [_shown(result, names, metric) for names in BASELINES.values()]
        rows.append([name, f"{metric}{', lower is better' * (metric in LOWER)}", *shown])
    head = ["Data", "Metric on test", "First configuration", "Calibration", *BASELINES]
    return f"{table(head, rows)}\n\n{_of_seeds(seeds)}"


def _shown(result: dict[str, Any], names: tuple[str, ...], metric: str) -> str:
    """Returns the metric of the first of some baselines that is there; empty if none is."""
    return next((f"{result[name][metric]:.4f}" for name in names if name in result), "")


def _spread(values: list[float]) -> str:
    spread = f" ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
    return f"{np.median(values):.4f}{spread}"


def _of_seeds(seeds: set[int]) -> str:
    if seeds == {1}:
        return "One seed."
    rest = " One seed where there is no spread." if 1 in seeds else ""
    return f"The median of {max(seeds)} seeds, the least and the greatest beside it.{rest}"


if __name__ == "__main__":
    main()
