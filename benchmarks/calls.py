"""Counts the Python calls of a step by their owner, and measures the processor time of a step without a compiler.

Writes docs/explanation/step.md.
Takes two minutes.

The batches come from memory, and torch computes with one thread, so that a busy machine changes the time little.
"""

import contextlib
import cProfile
import io
import itertools
import pstats
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from benchmarks.bench.setting import make_config, make_data
from benchmarks.bench.training import changed
from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.calibrate.steps import batches_in_memory
from trainer.config.root import Config, load_config
from trainer.core.distributed import process_group
from trainer.run.reporter import StallTimer
from trainer.training.session import Session
from trainer.training.setup import open_session

PAGE = ROOT / "docs" / "explanation" / "step.md"
BATCH, ROWS = 1024, 20_000
WARM_STEPS, COUNTED, ROUNDS = 10, 20, 7
OWNERS = {
    "Trainer": ("/trainer/", "/torchx_recsys/"),
    "TorchRec": ("/torchrec/",),
    "FBGEMM": ("/fbgemm_gpu/",),
    "torch": ("/torch/",),
}
OTHERS = "Others"
DEEPFM = {"name": "deepfm", "embedding_dim": 16, "over_layers": [64, 32]}
EAGER = {
    "train.compile": False,
    "optimizer.dense.fused": True,
    "data.global_batch_size": BATCH,
    "report.tensorboard": False,  # whose import, in the first report, would count as a part of a step
}


def main() -> None:
    """Measures three models and rewrites the table."""
    with tempfile.TemporaryDirectory() as folder:
        make_data(folder, ROWS)
        models = {
            "DeepFM, 4 tables": changed(load_config("movielens"), {"model": DEEPFM}),
            "DLRM, 26 tables": make_config(folder, BATCH),
            "HSTU, histories of 50": load_config("movielens_hstu"),
        }
        found = {name: measure(changed(config, EAGER), f"{folder}/{name}") for name, config in models.items()}
    write_measured(PAGE, "calls", render(found))


def measure(config: Config, out: str) -> tuple[Counter[str], float]:
    """Returns the Python calls of a step by their owner, and the milliseconds of processor time of a step."""
    quiet = contextlib.redirect_stdout(io.StringIO())
    with quiet, process_group() as context, open_session(config, out, "never", context) as session:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return _measure(session)
        finally:
            torch.set_num_threads(threads)


def _measure(session: Session) -> tuple[Counter[str], float]:
    session = replace(session, batches=StallTimer(itertools.cycle(batches_in_memory(session))))
    training_step, numbers = session.training_step(), itertools.count(1)

    def take() -> None:
        step = next(numbers)
        session.record(step, training_step.take(step, session.batches))
        session.requested_action(step)
        session.save_due(step)
        session.evaluation_due(step)

    for _ in range(WARM_STEPS):
        take()
    calls = count(take)
    milliseconds = min(_milliseconds(take) for _ in range(ROUNDS))
    training_step.detach()
    return calls, milliseconds


def count(take: Callable[[], None]) -> Counter[str]:
    """Returns the Python calls of a step by their owner, a mean over some steps."""
    profile = cProfile.Profile(builtins=False)
    for _ in range(COUNTED):
        profile.runcall(take)
    stats: dict[tuple[str, int, str], Any] = vars(pstats.Stats(profile))["stats"]
    calls: Counter[str] = Counter()
    for (file, _, name), (_, number, *_) in stats.items():
        if file != __file__ and name != "<built-in>":
            calls[owner_of(file)] += number
    return Counter({owner: round(number / COUNTED) for owner, number in calls.items()})


def owner_of(file: str) -> str:
    """Returns whose code a file is."""
    # Packages that are installed lie below the folder of this project, too.
    inside = file.rpartition("site-packages")[2]
    return next((owner for owner, folders in OWNERS.items() if any(one in inside for one in folders)), OTHERS)


def _milliseconds(take: Callable[[], None]) -> float:
    start = time.process_time()
    for _ in range(COUNTED):
        take()
    return 1e3 * (time.process_time() - start) / COUNTED


def render(found: dict[str, tuple[Counter[str], float]]) -> str:
    """Returns the table and the machine."""
    owners = [*OWNERS, OTHERS]
    rows = [
        [name, *(f"{calls[owner]:,}" for owner in owners), f"{sum(calls.values()):,}", f"{milliseconds:.3g}"]
        for name, (calls, milliseconds) in found.items()
    ]
    heads = ["Model", *owners, "All calls", "Milliseconds"]
    return (
        f"{table(heads, rows)}\n\n"
        f"Python calls in a step of {BATCH:,} samples by whose code is called, and its processor time, the least of "
        f"{ROUNDS} rounds; one rank, batches in memory, one thread, {describe_machine()['processor']}, torch "
        f"{torch.__version__}."
    )


if __name__ == "__main__":
    main()
