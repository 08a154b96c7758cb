"""What a step takes beside its tables and its dense part, and how fast data is read."""

import contextlib
import itertools
import statistics
import time
from dataclasses import replace
from functools import partial

import torch

from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.run_directory import RunDirectory
from trainer.datasets.synthetic import synthetic
from trainer.plan.allowed_types import with_allowed_types
from trainer.plan.ranks import ranks_to_plan_for
from trainer.plan.search.speeds import Speeds
from trainer.plan.step_time import DENSE_BYTES, time_of_plan
from trainer.tools.bench.features import changed
from trainer.tools.bench.setting import batches_in_memory, make_config, scratch_run
from trainer.tools.calibrate.timing import nanoseconds
from trainer.training.session import Session
from trainer.training.setup import open_session
from trainer.training.sharded_model import build_unsharded_model
from trainer.training.step import TrainingStep

TABLE_ROWS = 100
ENDLESS = 10**6
SMALL = 8  # a batch that is so many times smaller
STEPS = 8  # of batches that are read at a time


def step_speeds(
    speeds: Speeds, folder: str, samples: int, context: DistributedContext, repeats: int
) -> tuple[dict[str, float], float]:
    """Returns the speeds of what nothing else explains of a step, by their names, and samples read in a second.

    Args:
        speeds: The speeds of everything else.
        folder: Where data and run directories are made, and removed.
        samples: Samples of a rank in a step.
        context: This process among the ranks.
        repeats: Steps to take.
    """
    with scratch_run(RunDirectory(folder), context) as scratch, contextlib.ExitStack() as stack:
        rows = STEPS * samples * context.world_size
        make = partial(
            synthetic, scratch.url_of("data"), rows, validation_rows=0, test_rows=0, table_rows=(TABLE_ROWS,)
        )
        broadcast_from_rank0(context, make)
        config = make_config(scratch.url, samples * context.world_size)
        sparse = {f"data.sparse.{name}.rows": TABLE_ROWS for name in config.data.sparse}
        config = changed(
            config, sparse | {"train.epochs": None, "train.steps": ENDLESS, "planner.sharding_types": ["table_wise"]}
        )
        left, sizes, rates = [], [], []
        for number, of_rank in enumerate((samples, -(-samples // SMALL))):
            batch = changed(config, {"data.global_batch_size": of_rank * context.world_size})
            session = stack.enter_context(open_session(batch, scratch.url_of(f"run-{number}"), "never", context))
            left.append(_unexplained(session, speeds, repeats))
            sizes.append(DENSE_BYTES * of_rank * len(sparse) * config.model.embedding_dim)
            rates.append(_samples_per_second(session, of_rank))
        output_byte = max(0.0, (left[0] - left[1]) / max(1, sizes[0] - sizes[1]))
        return {"output_byte": output_byte, "step": max(0.0, left[0] - output_byte * sizes[0])}, rates[0]


def _unexplained(session: Session, speeds: Speeds, repeats: int) -> float:
    """Returns the nanoseconds of a step that other speeds do not explain."""
    step, batches = TrainingStep(session), itertools.cycle(batches_in_memory(session))
    numbers = itertools.count(1)
    found = nanoseconds(lambda: step.take(next(numbers), batches), session.context.device, repeats)
    step.detach()
    config, context = session.config, session.context
    planner, world = with_allowed_types(config), (context.world_size, context.local_world_size, context.device.type)
    others = replace(speeds, output_byte=0.0, step=0.0)
    ranks = replace(ranks_to_plan_for(config.data, planner, config.comms, *world), speeds=others)
    model = build_unsharded_model(config, torch.device("meta"))
    explained = time_of_plan(session.model.plan, model, config, planner, ranks)
    return found - 1e6 * (float(explained.by_rank[context.rank].sum()) + explained.dense)


def _samples_per_second(session: Session, samples: int) -> float:
    """Returns the rate of the loader, whose threads take processor time beside that of steps."""
    found = []
    for _ in range(3):
        start = time.process_time()
        for _ in session.order.loader.batches(0, STEPS):
            pass
        found.append(STEPS * samples / (time.process_time() - start))
    # All ranks have read before any leaves: the data is removed then.
    return statistics.median(gather_to_all(statistics.median(found), session.context))
