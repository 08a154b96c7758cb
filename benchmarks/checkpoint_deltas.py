"""Measures deltas between checkpoints at the table sizes of Criteo Kaggle.

Writes docs/guides/checkpoints.md.
Takes some minutes, 8 GB of memory and 2 GB of disk.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.machine import available_cores
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.calibrate.calibrate import processor_name
from trainer.checkpoint.saver import Staging
from trainer.checkpoint.state_dict import State
from trainer.config.root import Config, load_config
from trainer.core.distributed import DistributedContext, local_shards_of, process_group
from trainer.training.setup import open_session

PAGE = ROOT / "docs" / "guides" / "checkpoints.md"
BATCH, STEPS, EVERY = 8192, 1000, 100
EXPONENTS = (1.05, 1.2)  # of Zipf's law: the k-th most frequent id is about k**-exponent as frequent as the first
COLUMNS = 16


def main() -> None:
    """Measures all and rewrites the table."""
    rows = [row for exponent in EXPONENTS for row in _of(exponent)]
    headers = [
        "Ids",
        "Steps between saves",
        "Whole",
        "Delta",
        "Times fewer",
        "Pause of a copy",
        "Pause of a delta",
        "Steps",
    ]
    where = f"{processor_name()}, {available_cores()} cores, one rank; pauses beside the seconds of the steps between."
    write_measured(PAGE, "deltas", f"{table(headers, rows)}\n\n{where}")


def _of(exponent: float) -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("criteo_kaggle")
        sizes = [str(feature.rows) for feature in config.data.sparse.values()]
        rows = str((STEPS + 1) * BATCH)
        splits = ("--validation-rows", "0", "--test-rows", "0")
        make = ("synthetic", "--out", f"{folder}/data", "--rows", rows, *splits, "--zipf", str(exponent))
        subprocess.run([sys.executable, "-m", "trainer", *make, "--table-rows", *sizes], check=True)
        changes = {
            "data": {"train": [f"{folder}/data/train"], "validation": [], "test": [], "global_batch_size": BATCH},
            "model": {"embedding_dim": COLUMNS, "dense_layers": [64], "over_layers": [64]},
            "train": {"steps": STEPS, "epochs": None},
        }
        with process_group() as context:
            return _measured(_with(config, changes), f"{folder}/run", context, exponent)


def _with(config: Config, changes: dict[str, dict[str, Any]]) -> Config:
    tree = config.model_dump()
    for section, values in changes.items():
        tree[section] |= values
    return Config.model_validate(tree)


def _measured(config: Config, out: str, context: DistributedContext, exponent: float) -> list[list[str]]:
    """Trains, and compares with copies of 100 and 1,000 steps before."""
    with open_session(config, out, "never", context) as session:
        step, recent, early = session.training_step(), Staging(), Staging()
        for staging in (recent, early):
            staging.copy(session.model.tensors())
        sizes, pauses, copies, spans = [], [], [], []
        for first in range(1, STEPS, EVERY):
            spans.append(
                _seconds(lambda first=first: [step.take(n, session.batches) for n in range(first, first + EVERY)])
            )
            started = time.perf_counter()
            sizes.append(_bytes(recent.changes(session.model.tensors())))
            pauses.append(time.perf_counter() - started)
            copies.append(_seconds(lambda: recent.copy(session.model.tensors())))
        started = time.perf_counter()
        of_all = _bytes(early.changes(session.model.tensors()))
        pause = time.perf_counter() - started
        total = _bytes(session.model.tensors())
        step.detach()
    ids = f"Zipf, {exponent}"
    return [
        _row(ids, EVERY, total, statistics.median(sizes), copies, statistics.median(pauses), statistics.median(spans)),
        _row(ids, STEPS, total, of_all, copies, pause, sum(spans)),
    ]


def _row(ids: str, steps: int, whole: int, delta: float, copies: list[float], pause: float, span: float) -> list[str]:
    cells = [f"{whole / 1e6:,.0f} MB", f"{delta / 1e6:,.0f} MB", f"{whole / delta:.1f}"]
    return [ids, f"{steps:,}", *cells, f"{statistics.median(copies):.2f} s", f"{pause:.2f} s", f"{span:.0f} s"]


def _seconds(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _bytes(tensors: State) -> int:
    return sum(shard.numel() * shard.element_size() for value in tensors.values() for shard in local_shards_of(value))


if __name__ == "__main__":
    main()
