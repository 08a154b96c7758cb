"""How fast the loader reads and the loop steps, each beside what it is to be compared with.

Nothing is shared between the two but the data, the model and its optimizers.
"""

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import torch
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from torchrec.datasets.utils import Batch as RandomBatch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.data import DataConfig
from trainer.core.distributed import DistributedContext
from trainer.data.batch import Batch
from trainer.data.dataset import FileSet
from trainer.data.loader import Loader
from trainer.data.order import Lanes
from trainer.datasets.synthetic import DENSE_FEATURES, SPARSE_FEATURES
from trainer.models.embeddings import table_configs
from trainer.plan.sharding import Sharder
from trainer.run.reporter import StallTimer
from trainer.tools.bench.comparison import Comparison, alternate
from trainer.tools.bench.setting import MEMORY_BATCHES, TABLE_ROWS, batches_in_memory, loader_of
from trainer.training.session import Session

WARM_STEPS = 5
RATE = 0.02  # of both optimizers, as is the default
PYTHON_ROWS = 1 / 100  # the part of the rows that the slowest reader gets


def compare_training(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares the loader, on the main rank alone, and the loop, on all ranks.

    Args:
        session: A fresh one.
        steps: Steps per repeat of a loop.
        repeats: Repeats of everything.
    """
    found = _compare_readers(session, repeats) if session.context.is_rank0 else []
    return found + _compare_loops(session, steps, repeats)


# The loader beside other readers of the same columns, one core for all threads.


def _compare_readers(session: Session, repeats: int) -> list[Comparison]:
    config, files = session.config.data, session.order.files
    lanes = Lanes(files.rows, 8, 8 * math.ceil(config.global_batch_size / 8))
    with _one_core():
        loader, plain, python = alternate(
            repeats,
            lambda: _rate(_load(files, config, lanes)),
            lambda: _rate(_read(files, config)),
            lambda: _rate(_read_rows(files, config, math.ceil(files.rows * PYTHON_ROWS))),
        )
    return [
        Comparison("loader, one core", "pyarrow, same columns", "rows/s", 0.5, loader, plain),
        Comparison("loader, one core", "a Python object per value", "rows/s", None, loader, python),
    ]


def _rate(sizes: Iterable[int]) -> float:
    """Returns how many rows come, in pieces of these sizes, per second of this process's time on the core."""
    start = time.process_time()
    return sum(sizes) / (time.process_time() - start)


def _load(files: FileSet, config: DataConfig, lanes: Lanes) -> Iterator[int]:
    loader = Loader(files, config, lanes, rank=0, world_size=1, seed=0, shuffle=True)
    for step, _ in enumerate(loader.batches(0, lanes.steps)):
        yield lanes.samples_in_step(step)


def _read(files: FileSet, config: DataConfig) -> Iterator[int]:
    for file in files.files:
        with pq.ParquetFile(file.url) as opened:
            for index in range(opened.num_row_groups):
                yield opened.read_row_group(index, config.columns, use_threads=False).num_rows


def _read_rows(files: FileSet, config: DataConfig, rows: int) -> Iterator[int]:
    """Reads the first rows the way that is easiest to write: as dictionaries, stacked to batches."""
    with pq.ParquetFile(files.files[0].url) as opened:
        batches = opened.iter_batches(min(rows, config.global_batch_size), columns=config.columns, use_threads=False)
        while rows > 0:
            found = next(batches).to_pylist()
            _stack(found, config)
            rows -= len(found)
            yield len(found)


def _stack(rows: list[dict[str, Any]], config: DataConfig) -> Batch:
    ids = [row[name] for name in config.sparse for row in rows]
    sparse = KeyedJaggedTensor(
        keys=list(config.sparse),
        values=torch.tensor(ids, dtype=torch.int32),
        lengths=torch.ones(len(ids), dtype=torch.int32),
    )
    return Batch(
        dense=torch.tensor([[row[name] for name in config.dense] for row in rows]),
        sparse=sparse,
        labels=torch.tensor([[row[name] for name in config.labels] for row in rows]),
        weights=torch.ones(len(rows)),
        scale=torch.tensor(1 / len(rows)),
    )


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Keeps this thread, and those that it starts, on one core."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {max(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


# The loop, on batches from Parquet and from memory, beside one written by hand.


def _compare_loops(session: Session, steps: int, repeats: int) -> list[Comparison]:
    loader, kept = loader_of(session), batches_in_memory(session)
    by_hand = _write_by_hand(session)
    drawn = [_random_batch(session) for _ in range(MEMORY_BATCHES)]
    parquet, memory, hand = alternate(
        repeats,
        lambda: _train(session, loader.batches(0, WARM_STEPS + steps), steps),
        lambda: _train(session, itertools.islice(kept, WARM_STEPS + steps), steps),
        lambda: _train_by_hand(session, *by_hand, drawn, steps),
    )
    return [
        Comparison("training from Parquet", "training from memory", "samples/s", 0.95, parquet, memory),
        Comparison("training from memory", "a loop written by hand", "samples/s", 0.97, memory, hand),
    ]


def _train(session: Session, batches: Iterator[Batch], steps: int) -> float:
    """Returns samples per second of the training loop, as in `loop.run`, but for evaluations and checkpoints."""
    session = replace(session, batches=StallTimer(batches))
    optimizers = session.model.optimizers
    pipeline = TrainPipelineSparseDist(session.model.model, optimizers.combined, session.context.device)

    def step(number: int) -> bool:
        optimizers.set_rates(number)
        loss, *_ = pipeline.progress(session.batches)
        session.record(number, loss)
        return session.evaluator.due(number) or session.saver.due(number)

    return _time_steps(session, pipeline, step, steps)


def _write_by_hand(session: Session) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """Returns the same model under the same plan, put together as TorchRec's own examples do it."""
    config, context = session.config, session.context
    tables = EmbeddingBagCollection(tables=table_configs(config.data, config.model), device=torch.device("meta"))
    dense_layers = [*config.model.dense_layers, config.model.embedding_dim]
    model = DLRMTrain(DLRM(tables, DENSE_FEATURES, dense_layers, [*config.model.over_layers, 1], context.device))
    for parameter in tables.parameters():
        apply_optimizer_in_backward(RowWiseAdagrad, [parameter], {"lr": RATE})
    sharder = Sharder(config.comms)
    sharded = DistributedModelParallel(model, device=context.device, plan=session.model.plan, sharders=[sharder])  # pyrefly: ignore[bad-argument-type]
    rest = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    dense = KeyedOptimizerWrapper(rest, lambda parameters: torch.optim.Adagrad(parameters, lr=RATE))
    return sharded, CombinedOptimizer([sharded.fused_optimizer, dense])


def _random_batch(session: Session) -> RandomBatch:
    rows = session.config.data.global_batch_size // session.context.world_size
    ids = torch.randint(TABLE_ROWS, (SPARSE_FEATURES * rows,))
    lengths = torch.ones(SPARSE_FEATURES * rows, dtype=torch.int32)
    sparse = KeyedJaggedTensor(keys=list(session.config.data.sparse), values=ids, lengths=lengths)
    return RandomBatch(torch.rand(rows, DENSE_FEATURES), sparse, torch.randint(2, (rows,)))


def _train_by_hand(
    session: Session,
    model: DistributedModelParallel,
    optimizer: CombinedOptimizer,
    batches: list[RandomBatch],
    steps: int,
) -> float:
    """Returns samples per second of the least that trains: random batches, the pipeline and nothing else."""
    pipeline = TrainPipelineSparseDist(model, optimizer, session.context.device)
    endless = itertools.cycle(batches)
    return _time_steps(session, pipeline, lambda _: pipeline.progress(endless), steps)


def _time_steps(
    session: Session, pipeline: TrainPipelineSparseDist[Any, Any], step: Callable[[int], Any], steps: int
) -> float:
    for number in range(1, WARM_STEPS + 1):
        step(number)
    _wait(session.context)
    start = time.perf_counter()
    for number in range(WARM_STEPS + 1, WARM_STEPS + steps + 1):
        step(number)
    _wait(session.context)
    seconds = time.perf_counter() - start
    pipeline.detach()
    return steps * session.order.lanes.global_batch_size / seconds


def _wait(context: DistributedContext) -> None:
    """Waits for the work that the device has been given."""
    if context.device.type == "cuda":
        torch.cuda.synchronize()
