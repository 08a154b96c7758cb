"""Trains with one peer, in the peer's environment, and prints the measurements: `python run.py LOOP CASE.json`.

Imports nothing of this project: a peer's environment has only the peer and what it requires.
"""

import importlib
import json
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS: list[float] = []
"""The time of the end of every step, in seconds since 1970."""
TABLE_RATE = 0.005
"""Learning rate of row-wise Adagrad, which this project and TorchRec update tables with."""


@dataclass(frozen=True)
class Case:
    """A case to train.

    Attributes:
        folder: Has `train.npz` and `test.npz`, and the same rows as Parquet in `train` and `test`.
        model: `deepfm`, `dlrm` or `hstu`.
        tables: Rows of each table.
        dense: Number of dense features.
        dim: Columns of an embedding.
        layers: Widths of the hidden layers over the embeddings.
        batch: Samples of a step.
        epochs: Passes over the rows.
        learning_rate: Of Adam.
        threads: Of torch.
        history: The longest history of `hstu`.
        units: Units of `hstu`.
        started: When the process was started, in seconds since 1970.
    """

    folder: str
    model: str
    tables: list[int]
    dense: int
    dim: int
    layers: list[int]
    batch: int
    epochs: int
    learning_rate: float
    threads: int
    history: int
    units: int
    started: float

    def rows(self, split: str) -> tuple:
        """Returns the dense features `[N, D]` float32, ids `[N, T]` int64 and labels `[N]` float32 of a split.

        Ids for `hstu` are the history, after -1 where it is shorter than the longest, and last the item, in one table.
        """
        import numpy as np

        with np.load(Path(self.folder, f"{split}.npz")) as found:
            return tuple(found[kind] for kind in ("dense", "ids", "labels"))

    def columns(self, split: str) -> tuple[dict, Any]:
        """Returns the columns of a split by name, `d0` and `f0` and so on, and its labels."""
        dense, ids, labels = self.rows(split)
        columns = {f"d{place}": dense[:, place] for place in range(self.dense)}
        return columns | {f"f{place}": ids[:, place] for place in range(len(self.tables))}, labels


def auc(scores: object, labels: object) -> float:
    """Returns the probability that a positive sample scores above a negative one, ties counting half."""
    import numpy as np

    scores, labels = np.asarray(scores, np.float64).reshape(-1), np.asarray(labels)
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]
    positive = labels > 0.5
    wins = ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    return float(wins / (positive.sum() * (~positive).sum()))


def main(loop: str, case_file: str) -> None:
    """Trains and prints one line of JSON, the last."""
    case = Case(**json.loads(Path(case_file).read_text()))
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(case.threads)
    torch.manual_seed(0)

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        # Fused optimizers of tables, and wrappers of optimizers, have their own steps.
        if isinstance(optimizer, torch.optim.Adam):
            STEPS.append(time.time())

    register_optimizer_step_post_hook(note)
    sys.path.insert(0, str(Path(__file__).with_name("loops")))
    found = importlib.import_module(loop).train(case)
    a_pass = len(STEPS) // case.epochs
    ends = [STEPS[start : start + a_pass] for start in range(0, a_pass * case.epochs, a_pass)]
    # The first pass warms up. Between the steps of a pass, as there may be an evaluation after it.
    rates = [case.batch * (len(one) - 1) / (one[-1] - one[0]) for one in ends[1:]]
    measured = {
        "first_step_seconds": STEPS[0] - case.started,
        # What the first pass takes beyond its steps, as some compile more than once.
        "start_seconds": ends[0][-1] - case.started - case.batch * a_pass / statistics.median(rates),
        "samples_per_second": rates,
        "peak_bytes": _peak_bytes(),
        "auc": found,
    }
    print(json.dumps(measured))


def _peak_bytes() -> int:
    # Not getrusage, which begins with the memory of the process that started this one.
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0])


if __name__ == "__main__":
    sys.modules["run"] = sys.modules["__main__"]
    main(*sys.argv[1:])
