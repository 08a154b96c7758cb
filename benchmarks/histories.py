"""Measures steps of HSTU over histories of unlike lengths, dealt by cost and without padding.

Writes docs/explanation/lanes.md and docs/guides/sequences.md.
Takes four minutes of a quiet machine, and 4 GB of memory.

The lengths follow Zipf's law, and are a quarter of the longest in the mean. Times are of the processor, as the ranks
share the cores of one machine. Memory is the growth of a process in its steps, up to its peak.
"""

import contextlib
import io
import itertools
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.bench.comparison import alternate, median_and_spread
from benchmarks.machine import describe_machine
from benchmarks.ranks import run_on_ranks
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.calibrate.steps import MEMORY_BATCHES, batches_in_memory
from torchx_recsys.planner.hardware import GIB
from trainer.config.root import Config
from trainer.core.console import quiet_libraries
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all, process_group
from trainer.models import sequence_model
from trainer.run.step_clock import peak_bytes
from trainer.training.session import Session
from trainer.training.setup import open_session

LANES, GUIDE = ROOT / "docs" / "explanation" / "lanes.md", ROOT / "docs" / "guides" / "sequences.md"
RANKS, ITEMS, NOW = 4, 1000, 1_700_000_000
DEALT: dict[str, dict[str, Any]] = {
    "as they come": {},
    "to ranks, `squares = 0`": {"balance": {"features": ["seen"]}},
    "to ranks, `squares = 0.01`": {"balance": {"features": ["seen"], "squares": 0.01}},
    "to steps, `squares = 0`": {"even_steps": {"features": ["seen"]}},
    "to steps, `squares = 0.01`": {"even_steps": {"features": ["seen"], "squares": 0.01}},
}
LONGEST, BATCH = 2000, 64  # longest history and batch of steps on all ranks
SHORTER, SMALLER, REPEATS = 500, 32, 5  # for padding: samples padded to 2,000 would not fit into memory
MODELS = ("hstu", "sasrec")


@dataclass(frozen=True)
class Measured:
    """Measured steps.

    Attributes:
        seconds: Seconds of each rank, step by step.
        losses: Loss of each step.
        bytes: Memory that the steps take, at the peak of the fullest rank.
    """

    seconds: list[list[float]]
    losses: list[float]
    bytes: int


def main() -> None:
    """Measures everything and rewrites both tables."""
    with tempfile.TemporaryDirectory() as folder:
        write_measured(LANES, "dealt", render_dealt(dealt(Path(folder))))
        write_measured(GUIDE, "padded", render_padded(padded(Path(folder))))


def dealt(folder: Path, ranks: int = RANKS, longest: int = LONGEST) -> dict[str, Measured]:
    """Returns the measurements for each way to deal samples."""
    write_histories(folder / "dealt", longest, MEMORY_BATCHES * BATCH)
    found = {}
    for name, changes in DEALT.items():
        run_on_ranks(ranks, _run_dealt, folder, longest, changes)
        found[name] = Measured(**json.loads((folder / "dealt.json").read_text()))
    return found


def padded(folder: Path, longest: int = SHORTER, repeats: int = REPEATS) -> dict[str, list[list[float]]]:
    """Returns samples per second of one rank in every repeat, without and with padding to the longest, by model."""
    write_histories(folder / "padded", longest, MEMORY_BATCHES * SMALLER)
    with process_group() as context, contextlib.redirect_stdout(io.StringIO()):
        torch.set_num_threads(1)  # threads that wait take processor time
        return {model: _run_padded(model, folder, longest, repeats, context) for model in MODELS}


def write_histories(folder: Path, longest: int, rows: int) -> None:
    """Writes random items after random histories."""
    random = np.random.default_rng(0)
    lengths = random.permutation(sequence_model.likely_lengths(rows, rows * longest // 4, longest))
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


def settings(model: str, folder: Path, longest: int, batch: int, changes: dict[str, Any]) -> Config:
    """Returns the configuration of a model of two blocks or units."""
    items, lists = {"rows": ITEMS, "table": "items", "pooling": "none"}, {"max_ids": longest, "hotness": longest / 4}
    times = {"rows": 2**31 - 1, "pooling": "raw"}
    sparse = {"item": items | {"max_ids": 1}, "seen": items | lists}
    reads = {"target": "item", "history": "seen", "attention_blocks": 2}
    if model == "hstu":
        sparse |= {"seen_how": {"rows": 5, "pooling": "none"} | lists}
        sparse |= {"seen_at": times | lists, "now": times | {"max_ids": 1}}
        reads |= {"actions": ["seen_how"], "history_times": "seen_at", "target_time": "now"}
    data = {"train": [str(folder)], "sparse": sparse, "global_batch_size": batch} | changes
    return Config.model_validate(
        {
            "data": data,
            "model": {"name": model, "embedding_dim": 16, "over_layers": [16]} | reads,
            "planner": {"sharding_types": ["row_wise"]},
            "report": {"tensorboard": False},
        }
    )


def _run_dealt(folder: Path, longest: int, changes: dict[str, Any]) -> None:
    quiet_libraries()
    config = settings("hstu", folder / "dealt", longest, BATCH, changes)
    with process_group() as context, contextlib.redirect_stdout(io.StringIO()):
        out = broadcast_from_rank0(context, lambda: tempfile.mkdtemp(dir=folder))
        with open_session(config, out, "never", context) as session:
            found = _take_steps(session)
        if context.is_rank0:
            (folder / "dealt.json").write_text(json.dumps(asdict(found)))


def _take_steps(session: Session) -> Measured:
    """Takes steps on batches in memory; the first step is not measured."""
    step, batches = session.training_step(), itertools.cycle(batches_in_memory(session))
    before, seconds, losses = peak_bytes(session.context), [], []
    for number in range(1, MEMORY_BATCHES + 2):
        start = time.process_time()
        loss = step.take(number, batches).loss
        of_ranks = gather_to_all((time.process_time() - start, float(loss)), session.context)
        seconds.append([one for one, _ in of_ranks])
        losses.append(statistics.mean(loss for _, loss in of_ranks))
    step.detach()
    grown = gather_to_all(peak_bytes(session.context) - before, session.context)
    return Measured(seconds[1:], losses[1:], max(grown))


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
            with patch.object(sequence_model, "_groups", lambda lengths: [(np.arange(len(lengths)), longest)]):
                return rate()

        found = alternate(repeats, rate, rate_with_padding)
        step.detach()
    return found


def render_dealt(found: dict[str, Measured]) -> str:
    """Returns the table of ways to deal samples, and the machine."""
    rows, plain = [], next(iter(found.values()))
    for name, one in found.items():
        slowest = [max(of_ranks) / statistics.mean(of_ranks) for of_ranks in one.seconds]
        longest = max(map(max, one.seconds)) / statistics.mean(itertools.chain(*one.seconds))
        differ = max(abs(loss / other - 1) for loss, other in zip(one.losses, plain.losses, strict=True))
        differ = f"{differ:.0e}" if name.startswith("to ranks") else ""  # steps of other dealings have other samples
        ratios = [f"{ratio:.2f}" for ratio in (statistics.mean(slowest), max(slowest), longest)]
        rows.append([name, *ratios, f"{one.bytes / GIB:.2f} GiB", differ])
    headers = ["Samples are dealt", "Slowest rank", "In the worst step", "Longest step", "Memory", "Losses differ by"]
    return (
        f"{table(headers, rows)}\n\n"
        f"HSTU of two units, {RANKS} ranks, {len(plain.seconds)} steps of {BATCH} samples, {_lengths(LONGEST)}. The "
        "processor time of the slowest rank in a step is over the mean of the ranks, that in the longest step over the "
        f"mean of ranks and steps; memory is of the steps, at the peak of the fullest rank. {_machine()}"
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
