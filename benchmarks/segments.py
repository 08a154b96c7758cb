"""Compares a model that is trained on each segment with other ways to stay fresh: `python -m benchmarks.segments`.

Writes the table of docs/continuous.md. MovieLens-100k in 30 segments must be in data/movielens (`data.movielens`).
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.generate import ROOT, table, write_measured

PAGE = ROOT / "docs" / "continuous.md"
CONFIG = "movielens_segments"
SEGMENTS = ROOT / "data" / "movielens" / "segments"
SEEDS = (0, 1, 2)
STATIC = 9  # the last segment that the static model is trained on
EVALUATED = range(10, 30, 4)
NONE = ("--data.segments.path", "None")  # a run of files


def main() -> None:
    """Measures all and rewrites the table."""
    found = {seed: _of_seed(seed) for seed in SEEDS}
    ways = list(found[0])
    rows = [
        [f"{segment:02d}", *(_mean([found[seed][way][segment] for seed in SEEDS]) for way in ways)]
        for segment in EVALUATED
    ]
    overall = [[statistics.mean(found[seed][way].values()) for seed in SEEDS] for way in ways]
    rows.append(["all of these", *(f"{statistics.mean(of):.4f} ± {statistics.stdev(of):.4f}" for of in overall)])
    write_measured(PAGE, "segments", table(["Segment", *ways], rows))


def _of_seed(seed: int) -> dict[str, dict[int, float]]:
    """Returns the normalized entropy on segments before any training on them, by the way that the model was trained."""
    with tempfile.TemporaryDirectory() as folder:
        train = ("train", CONFIG, "--train.seed", str(seed))
        _run(*train, "--out", f"{folder}/chain")
        lines = [json.loads(line) for line in Path(folder, "chain/segments.jsonl").read_text().splitlines()]
        _run(*train, "--out", f"{folder}/static", "--data.segments.until", f"{STATIC:02d}")
        found: dict[str, dict[int, float]] = {
            "each segment": {int(line["segment"]): line["before"]["normalized_entropy"] for line in lines},
            f"segments 00 to {STATIC:02d}": {},
            "from scratch, all before": {},
            "from scratch, the one before": {},
        }
        found["each segment"] = {segment: found["each segment"][segment] for segment in EVALUATED}
        _, static, anew, last = found
        for segment in EVALUATED:
            test = ("--data.test", str(_file(segment)))
            _run("evaluate", CONFIG, "--out", f"{folder}/static", *NONE, *test)
            result = json.loads(Path(folder, "static/evaluation-test.json").read_text())
            found[static][segment] = result["normalized_entropy"]
            for way, first in ((anew, 0), (last, segment - 1)):
                files = [str(_file(number)) for number in range(first, segment)]
                out = f"{folder}/{first}-{segment}"
                _run(*train, "--out", out, *NONE, "--data.train", *files, *test, "--train.epochs", "1")
                evaluated = Path(out, "evaluations.jsonl").read_text().splitlines()[-1]
                found[way][segment] = json.loads(evaluated)["normalized_entropy"]
    return found


def _file(segment: int) -> Path:
    return SEGMENTS / f"{segment:02d}.parquet"


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.4f}"


def _run(*words: str) -> None:
    print(" ".join(words[:6]), flush=True)
    subprocess.run([sys.executable, "-m", "trainer", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
