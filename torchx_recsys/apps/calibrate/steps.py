"""Measures the speed of dense parts, the time of a step beyond dense parts and tables, and the reading rate."""

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from torchx_recsys.apps.calibrate.timing import explain, nanoseconds
from torchx_recsys.apps.datasets.synthetic import DENSE_FEATURES, synthetic
from torchx_recsys.planner.topology import Speeds
from trainer.batches.batch import Batch
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.run_directory import RunDirectory
from trainer.plan.make_plan import cluster_of_job, problem_of
from trainer.plan.sharding_plan import time_of_plan
from trainer.run.preemption import Stopped
from trainer.training.session import Session
from trainer.training.setup import open_session
from trainer.training.sharded_model import build_unsharded_model

TABLE_ROWS = 100
MEMORY_BATCHES = 8
SCRATCH = "scratch-run"
ENDLESS = 10**6
SMALL = 8  # how many times smaller the second batch is
STEPS = 8  # number of batches read at a time
# The figures that explain a step, besides its tables.
FIGURES = ("flop", "batched_flop", "dense_byte", "step")
# Dense parts, each with a different main cost: products of small matrices, bytes, products of large matrices, overhead.
MODELS: list[tuple[int, dict[str, Any]]] = [
    (26, {"name": "dlrm", "embedding_dim": 32, "dense_layers": [256, 128], "over_layers": [256, 128]}),
    (26, {"name": "deepfm", "embedding_dim": 32, "over_layers": [64]}),
    (26, {"name": "wide_deep", "embedding_dim": 16, "over_layers": [512, 256]}),
    (8, {"name": "dlrm", "embedding_dim": 64, "dense_layers": [64], "over_layers": [64]}),
]


def step_speeds(
    speeds: Speeds, folder: str, samples: int, context: DistributedContext, repeats: int
) -> tuple[dict[str, float], float]:
    """Returns the speeds that explain steps besides their tables, by name, and the samples read per second.

    Args:
        speeds: The speeds of everything else.
        folder: The folder of temporary data and run directories.
        samples: Samples of a rank in a step.
        context: This process among the ranks.
        repeats: Steps to take with each model.

    Raises:
        Stopped: A signal requested a stop.
    """
    others = replace(speeds, **dict.fromkeys(FIGURES, 0.0))
    with scratch_run(RunDirectory(folder), context) as scratch:
        rows = STEPS * samples * context.world_size
        make = partial(
            synthetic, scratch.url_of("data"), rows, validation_rows=0, test_rows=0, table_rows=(TABLE_ROWS,)
        )
        broadcast_from_rank0(context, make)
        counts, left, rates = [], [], []
        for number, ((features, model), of_rank) in enumerate(
            itertools.product(MODELS, (samples, -(-samples // SMALL)))
        ):
            config = _config(scratch.url, of_rank * context.world_size, features, model)
            with open_session(config, scratch.url_of(f"run-{number}"), "never", context) as session:
                counted, time_left = _unexplained(session, others, repeats)
                counts.append(counted)
                left.append(time_left)
                rates.append(_samples_per_second(session, of_rank) if number == 0 else 0.0)
                stopped = any(gather_to_all(session.stop_requests.waiting_seconds > 0, context))
            if stopped:  # an open session takes the signals
                raise Stopped
        return dict(zip(FIGURES, explain(counts, left), strict=True)), rates[0]


@contextlib.contextmanager
def scratch_run(out: RunDirectory, context: DistributedContext) -> Iterator[RunDirectory]:
    """Yields a run directory below another directory; it starts empty and is deleted at the end."""
    scratch = RunDirectory(out.url_of(SCRATCH))

    def remove() -> None:
        if scratch.fs.exists(scratch.path()):
            scratch.fs.rm(scratch.path(), recursive=True)

    broadcast_from_rank0(context, remove)
    yield scratch
    gather_to_all(None, context)  # every rank has finished
    broadcast_from_rank0(context, remove)


def batches_in_memory(session: Session) -> list[Batch]:
    """Returns the first few batches of a session's data."""
    return list(session.order.loader.batches(0, MEMORY_BATCHES))


def _config(url: str, global_batch_size: int, features: int, model: dict[str, Any]) -> Config:
    """Returns the configuration of a model with small tables, placed on the ranks in turn."""
    data = {
        "train": [f"{url}/data/train"],
        "dense": {f"int_{number}": {} for number in range(DENSE_FEATURES)},
        "sparse": {f"cat_{number}": {"rows": TABLE_ROWS} for number in range(features)},
        "global_batch_size": global_batch_size,
    }
    settings = {"planner": {"sharding_types": ["table_wise"]}, "train": {"steps": ENDLESS}}
    return Config.model_validate({"data": data, "model": model, **settings})


def _unexplained(session: Session, others: Speeds, repeats: int) -> tuple[list[float], float]:
    """Returns the count of each of `FIGURES` in a step, and the step's nanoseconds that other speeds do not explain."""
    step, batches = session.training_step(), itertools.cycle(batches_in_memory(session))
    numbers = itertools.count(1)
    found = nanoseconds(lambda: step.take(next(numbers), batches), session.context.device, repeats)
    step.detach()
    config, context = session.config, session.context
    model = build_unsharded_model(config, torch.device("meta"))
    problem = problem_of(model, config, cluster_of_job(config.planner.hardware, context))
    explained = time_of_plan(session.model.plan, replace(problem, topology=replace(problem.topology, speeds=others)))
    left = found - 1e6 * (float(explained.by_rank[context.rank].sum()) + explained.dense)
    work = problem.dense.work
    return [work.flops, work.batched_flops, work.bytes, 1.0], max(left, 1.0)


def _samples_per_second(session: Session, samples: int) -> float:
    """Returns the rate of the loader, whose threads take processor time besides the steps."""
    found = []
    for _ in range(3):
        start = time.process_time()
        for _ in session.order.loader.batches(0, STEPS):
            pass
        found.append(STEPS * samples / (time.process_time() - start))
    # No rank leaves before all have read, because the data is removed then.
    return statistics.median(gather_to_all(statistics.median(found), session.context))
