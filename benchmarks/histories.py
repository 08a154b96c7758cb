"""Measures steps of HSTU over histories of unlike lengths, dealt by cost and without padding: `make histories`.

The lengths follow Zipf's law, and are a quarter of the longest in the mean. Times are of the processor, as the ranks
share the cores of one machine.
"""

import contextlib
import io
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from apps.calibrate.steps import MEMORY_BATCHES, batches_in_memory
from benchmarks.bench.comparison import alternate, median_and_spread
from benchmarks.machine import describe_machine
from benchmarks.ranks import run_on_ranks
from docs.generate import ROOT, table, write_measured
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, gather_to_all, process_group
from trainer.core.logging import quiet_libraries
from trainer.models import sequences
from trainer.training.session import Session
from trainer.training.setup import open_session

LANES, GUIDE = ROOT / "docs" / "explanation" / "lanes.md", ROOT / "docs" / "guides" / "sequences.md"
RANKS, ITEMS, NOW = 4, 1000, 1_700_000_000
DEALT: dict[str, dict[str, Any]] = {
    "by lanes": {},
    "by cost, `squares = 0`": {"features": ["seen"]},
    "by cost, `squares = 0.01`": {"features": ["seen"], "squares": 0.01},
}
LONGEST, BATCH = 2000, 64  # of steps on all ranks
SHORTER, SMALLER, REPEATS = 500, 32, 5  # padded to 2,000, the samples would not fit into memory
MODELS = ("hstu", "sasrec")


def main() -> None:
    """Measures everything and rewrites both tables."""
    with tempfile.TemporaryDirectory() as folder:
        write_measured(LANES, "dealt", render_dealt(dealt(Path(folder))))
        write_measured(GUIDE, "padded", render_padded(padded(Path(folder))))


def dealt(folder: Path, ranks: int = RANKS, longest: int = LONGEST) -> dict[str, list[tuple[list[float], float]]]:
    """Returns the seconds of each rank and the loss, step by step, by the way in which samples are dealt."""
    write_histories(folder / "dealt", longest, MEMORY_BATCHES * BATCH)
    run_on_ranks(ranks, _run_dealt, folder, longest)
    return json.loads((folder / "dealt.json").read_text())


def padded(folder: Path, longest: int = SHORTER, repeats: int = REPEATS) -> dict[str, list[list[float]]]:
    """Returns samples per second of one rank in every repeat, without and with padding to the longest, by model."""
    write_histories(folder / "padded", longest, MEMORY_BATCHES * SMALLER)
    with process_group() as context, contextlib.redirect_stdout(io.StringIO()):
        torch.set_num_threads(1)  # threads that wait take processor time
        return {model: _run_padded(model, folder, longest, repeats, context) for model in MODELS}


def write_histories(folder: Path, longest: int, rows: int) -> None:
    """Writes random items after random histories."""
    random = np.random.default_rng(0)
    lengths = random.permutation(sequences.likely_lengths(rows, rows * longest // 4, longest))
    times = [NOW - np.sort(random.integers(1, 10**6, length))[::-1] for length in lengths]
    columns = {
        "item": random.integers(0, ITEMS, rows),
        "now": np.full(rows, NOW),
        "seen": pa.array([random.integers(0, ITEMS, length) for length in lengths], pa.list_(pa.int64())),
        "seen_how": pa.array([random.integers(0, 5, length) for length in lengths], pa.list_(pa.int64())),
        "seen_at": pa.array(times, pa.list_(pa.int64())),
        "label": random.integers(0, 2, rows).astype(np.float32),
    }
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=BATCH)


def settings(model: str, folder: Path, longest: int, batch: int, balance: dict[str, Any]) -> Config:
    """Returns the configuration of a model of two blocks or units."""
    items, lists = {"rows": ITEMS, "table": "items", "pooling": "none"}, {"max_ids": longest, "hotness": longest / 4}
    times = {"rows": 2**31 - 1, "pooling": "raw"}
    sparse = {"item": items | {"max_ids": 1}, "seen": items | lists}
    reads = {"target": "item", "history": "seen", "attention_blocks": 2}
    if model == "hstu":
        sparse |= {"seen_how": {"rows": 5, "pooling": "none"} | lists}
        sparse |= {"seen_at": times | lists, "now": times | {"max_ids": 1}}
        reads |= {"actions": ["seen_how"], "history_times": "seen_at", "target_time": "now"}
    data = {"train": [str(folder)], "sparse": sparse, "global_batch_size": batch, "balance": balance}
    return Config.model_validate(
        {
            "data": data,
            "model": {"name": model, "embedding_dim": 16, "over_layers": [16]} | reads,
            "planner": {"sharding_types": ["row_wise"]},
            "report": {"tensorboard": False},
        }
    )


def _run_dealt(folder: Path, longest: int) -> None:
    quiet_libraries()
    with process_group() as context, contextlib.redirect_stdout(io.StringIO()):
        found = {}
        for name, balance in DEALT.items():
            config = settings("hstu", folder / "dealt", longest, BATCH, balance)
            with open_session(config, str(folder / f"run {name}"), "never", context) as session:
                found[name] = [*_steps(session)]
        if context.is_rank0:
            (folder / "dealt.json").write_text(json.dumps(found))


def _steps(session: Session) -> Iterator[tuple[list[float], float]]:
    """Yields the seconds of each rank and the loss of steps after the first."""
    step, batches = session.training_step(), itertools.cycle(batches_in_memory(session))
    for number in range(1, MEMORY_BATCHES + 1):
        start = time.process_time()
        loss = step.take(number, batches).loss
        of_ranks = gather_to_all((time.process_time() - start, float(loss)), session.context)
        if number > 1:
            yield [seconds for seconds, _ in of_ranks], statistics.mean(loss for _, loss in of_ranks)
    step.detach()


def _run_padded(model: str, folder: Path, longest: int, repeats: int, context: DistributedContext) -> list[list[float]]:
    config = settings(model, folder / "padded", longest, SMALLER, {})
    with open_session(config, str(folder / model), "never", context) as session:
        step, batches, numbers = (
            session.training_step(),
            itertools.cycle(batches_in_memory(session)),
            itertools.count(1),
        )

        def rate() -> float:
            start = time.process_time()
            for number in itertools.islice(numbers, MEMORY_BATCHES):
                step.take(number, batches)
            return MEMORY_BATCHES * SMALLER / (time.process_time() - start)

        def rate_with_padding() -> float:
            with patch.object(sequences, "_groups", lambda lengths: [(np.arange(len(lengths)), longest)]):
                return rate()

        found = alternate(repeats, rate, rate_with_padding)
        step.detach()
    return found


def render_dealt(found: dict[str, list[tuple[list[float], float]]]) -> str:
    """Returns the table of ways to deal samples, and the machine."""
    rows, plain = [], next(iter(found.values()))
    for name, steps in found.items():
        slowest = [max(seconds) / statistics.mean(seconds) for seconds, _ in steps]
        differ = max(abs(loss / other - 1) for (_, loss), (_, other) in zip(steps, plain, strict=True))
        differ = "" if steps is plain else f"{differ:.0e}"
        rows.append([name, f"{statistics.mean(slowest):.2f}", f"{max(slowest):.2f}", differ])
    headers = ["Samples are dealt", "Slowest rank, mean of steps", "Slowest rank, worst step", "Losses differ by"]
    return (
        f"{table(headers, rows)}\n\n"
        f"HSTU of two units, {RANKS} ranks, {len(plain)} steps of {BATCH} samples, {_lengths(LONGEST)}. The processor "
        f"time of the slowest rank in a step is over the mean of the ranks. {_machine()}"
    )


def render_padded(found: dict[str, list[list[float]]]) -> str:
    """Returns the table of models, and the machine."""
    rows = []
    for model, (jagged, wide) in found.items():
        medians = [f"{statistics.median(one):,.0f}" for one in (jagged, wide)]
        rows.append([f"`{model}`", *medians, median_and_spread([a / b for a, b in zip(jagged, wide, strict=True)])])
    return (
        f"{table(['Model', 'In groups', 'Padded', 'Ratio'], rows)}\n\n"
        f"Samples per second of one core's time, two blocks or units, batches of {SMALLER}, {_lengths(SHORTER)}; "
        f"medians of {REPEATS} repeats. {_machine()}"
    )


def _lengths(longest: int) -> str:
    return f"histories of {longest // 4:,} items in the mean and {longest:,} at most, by Zipf's law"


def _machine() -> str:
    machine = describe_machine()
    return f"{machine['cores']} cores ({machine['processor']})."


if __name__ == "__main__":
    main()
