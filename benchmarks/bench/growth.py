"""Measures how the processor time of a step grows with tables and batch."""

import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tabulate import tabulate

from benchmarks.bench.setting import WARM_STEPS
from torchx_recsys.apps.calibrate.steps import batches_in_memory
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.run_directory import RunDirectory
from trainer.training.setup import open_session

TABLES, BATCHES = (3, 26, 200), (256, 1024, 4096, 16_384, 65_536)  # numbers of tables, and samples of the global batch
TABLE_ROWS, COLUMNS, DENSE_FEATURES = 10_000, 16, 5
MODEL = {"name": "deepfm", "embedding_dim": COLUMNS, "over_layers": [64, 32]}


@dataclass(frozen=True)
class StepCost:
    """The processor time of a step.

    Attributes:
        tables: Tables of the model.
        samples: Samples of the global batch.
        milliseconds: Processor time of a rank for a step, the mean of the ranks, in every repeat.
    """

    tables: int
    samples: int
    milliseconds: list[float]


def measure_growth(scratch: RunDirectory, context: DistributedContext, steps: int, repeats: int) -> list[StepCost]:
    """Measures steps of models with few and with many tables, in small and in large batches, from memory.

    Args:
        scratch: The folder of data and run directories.
        context: This process among the ranks.
        steps: Most steps per repeat; fewer in large batches.
        repeats: Repeats of everything.
    """
    broadcast_from_rank0(context, lambda: _write_rows(scratch))
    return [
        StepCost(tables, samples, [*_of_steps(scratch, tables, samples, context, steps, repeats)])
        for tables, samples in itertools.product(TABLES, BATCHES)
    ]


def _write_rows(scratch: RunDirectory) -> None:
    chance, rows = np.random.default_rng(0), max(BATCHES)
    dense = {f"int_{n}": chance.standard_normal(rows).astype(np.float32) for n in range(DENSE_FEATURES)}
    ids = {f"cat_{n}": chance.integers(0, TABLE_ROWS, rows).astype(np.int32) for n in range(max(TABLES))}
    label = {"label": chance.integers(0, 2, rows).astype(np.float32)}
    scratch.fs.makedirs(scratch.path())
    with scratch.fs.open(scratch.path("rows.parquet"), "wb") as file:
        pq.write_table(pa.table(dense | ids | label), file)


def _of_steps(
    scratch: RunDirectory, tables: int, samples: int, context: DistributedContext, steps: int, repeats: int
) -> Iterator[float]:
    data = {
        "train": [scratch.url_of("rows.parquet")],
        "dense": {f"int_{n}": {} for n in range(DENSE_FEATURES)},
        "sparse": {f"cat_{n}": {"rows": TABLE_ROWS} for n in range(tables)},
        "global_batch_size": samples,
    }
    config = Config.model_validate({"data": data, "model": MODEL, "train": {"epochs": 1}})
    count = max(2, min(steps, steps * BATCHES[1] // samples))
    with open_session(config, scratch.url_of(f"{tables}-{samples}"), "never", context) as session:
        step, batches, numbers = (
            session.training_step(),
            itertools.cycle(batches_in_memory(session)),
            itertools.count(1),
        )
        for number in itertools.islice(numbers, WARM_STEPS):
            step.take(number, batches)
        for _ in range(repeats):
            start = time.process_time()
            for number in itertools.islice(numbers, count):
                step.take(number, batches)
            yield statistics.mean(gather_to_all(1e3 * (time.process_time() - start) / count, context))
        step.detach()


def render_growth(costs: list[StepCost]) -> str:
    """Returns a table of milliseconds, tables down and batches across."""
    found = {(one.tables, one.samples): f"{statistics.median(one.milliseconds):.3g} ms" for one in costs}
    rows = [[str(tables), *(found[tables, samples] for samples in BATCHES)] for tables in TABLES]
    heads = ["tables", *(f"{samples:,} samples" for samples in BATCHES)]
    return tabulate(rows, heads, disable_numparse=True, colalign=["right"] * len(heads))
