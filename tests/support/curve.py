"""A stand-in for training, as a component of one's own: its curve follows the learning rate, and it resumes.

`python curve.py OUT RATE SECONDS UNTIL` adds a line to OUT/evaluations.jsonl every ten steps of 90, as training does.
"""

import json
import signal
import sys
import time
from pathlib import Path

from torchx.specs import AppDef, Resource, Role

STEPS, EVERY = 90, 10


def train(*args: str, config: str, out: str, seconds: float = 0.05, until: str = "") -> AppDef:
    """Trains.

    Args:
        args: Overrides of the configuration.
        config: The configuration.
        out: The run directory.
        seconds: Between two evaluations.
        until: A file that has to be there before the first evaluation.
    """
    rate = args[args.index("--optimizer.dense.learning_rate") + 1]
    words = [str(Path(__file__).resolve()), out, rate, str(seconds), until]
    return AppDef("curve", [Role("trainer", "", entrypoint="python", args=words, resource=Resource(1, 0, 100))])


def value(rate: float, step: int) -> float:
    """Returns what a learning rate reaches at a step: the best rate is 0.5, and the best step is the last but one."""
    return (1 - abs(rate - 0.5)) * (1 - abs(step - STEPS + EVERY) / STEPS)


def main(out: Path, rate: float, seconds: float, until: str) -> None:
    """Takes the steps that are left."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    out.mkdir(parents=True, exist_ok=True)
    file = out / "evaluations.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    (out / "starts").open("a").write(f"{len(lines)}\n")
    while until and not Path(until).exists():
        time.sleep(0.05)
    for step in range((len(lines) + 1) * EVERY, STEPS + 1, EVERY):
        time.sleep(seconds)
        with file.open("a") as appended:
            appended.write(json.dumps({"step": step, "split": "validation", "auc": value(rate, step)}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
