"""Compares a model trained on each segment with other ways to keep a model fresh.

Writes docs/explanation/continuous_results.md.
Takes some minutes.

The data set has 30 segments.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from docs.generate import ROOT, table, write_measured

PAGE = ROOT / "docs" / "explanation" / "continuous_results.md"
CONFIG = "movielens_segments"
SEGMENTS = ROOT / "data" / "movielens" / "segments"
SEEDS = (0, 1, 2)
STATIC = 9  # the last segment that the static model is trained on
EVALUATED = range(STATIC + 1, 30)
AT_ONCE = 2  # number of seeds at a time, each on one thread


def main() -> None:
    """Measures all and rewrites the table."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(SEEDS, pool.map(_of_seed, SEEDS), strict=True))
    ways = list(found[0])
    rows = [
        [_name(segment), *(_mean([found[seed][way][segment] for seed in SEEDS]) for way in ways)]
        for segment in EVALUATED
    ]
    overall = [[statistics.mean(found[seed][way].values()) for seed in SEEDS] for way in ways]
    rows.append(["all of these", *(f"{statistics.mean(of):.4f} ± {statistics.stdev(of):.4f}" for of in overall)])
    write_measured(PAGE, "segments", table(["Segment", *ways], rows))


def _of_seed(seed: int) -> dict[str, dict[int, float]]:
    """Returns the normalized entropy on segments before training on them, by the way of training."""
    with tempfile.TemporaryDirectory() as folder:
        train, chain = ("train", CONFIG, "--train.seed", str(seed)), f"{folder}/chain"
        _run(*train, "--out", chain, "--data.segments.until", f"{STATIC:02d}")
        step = _lines(f"{chain}/segments.jsonl")[-1]["step"]
        _run(*train, "--out", chain, "--checkpoint.keep.segments", "30")
        _run("segments", CONFIG, "--out", chain, "--static", str(step))
        found = {
            "each segment": {line["segment"]: line["before"] for line in _lines(f"{chain}/segments.jsonl")},
            f"segments 00 to {STATIC:02d}": {
                line["segment"]: line["values"] for line in _lines(f"{chain}/segments-static-{step}.jsonl")
            },
            "from scratch, all before": {_name(number): _anew(train, folder, 0, number) for number in EVALUATED},
            "from scratch, the one before": {
                _name(number): _anew(train, folder, number - 1, number) for number in EVALUATED
            },
        }
    return {
        way: {number: metrics[_name(number)]["normalized_entropy"] for number in EVALUATED}
        for way, metrics in found.items()
    }


def _anew(train: tuple[str, ...], folder: str, first: int, until: int) -> dict[str, float]:
    """Trains one pass over the segments from `first` to before `until`, and returns the metrics on `until`."""
    data = ("--data.train", *(_file(number) for number in range(first, until)), "--data.test", _file(until))
    out = f"{folder}/{first}-{until}"
    _run(*train, "--out", out, "--data.segments.path", "None", *data, "--train.epochs", "1")
    return _lines(f"{out}/evaluations.jsonl")[-1]


def _lines(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def _name(segment: int) -> str:
    return f"{segment:02d}"


def _file(segment: int) -> str:
    return str(SEGMENTS / f"{_name(segment)}.parquet")


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.4f}"


def _run(*words: str) -> None:
    print(" ".join(words[:6]), flush=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainer", *words]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
