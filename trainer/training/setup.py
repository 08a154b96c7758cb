"""Sets a training run up in four phases: claim its directory, plan its epochs, build its model, fill the model."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainer.checkpoint.restore import restore
from trainer.checkpoint.store import Checkpoint, Checkpoints
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, broadcast_when_done
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.data.loader import Loader
from trainer.data.negatives import Negatives
from trainer.data.selected_files import find_training_files
from trainer.metrics.checks import check_metrics, check_watched_metrics
from trainer.run.histograms import Histograms
from trainer.run.lock import locked
from trainer.run.preemption import stop_on_signals
from trainer.run.profile_requests import profile_requests
from trainer.run.profiler import check_profile
from trainer.run.reporter import StallTimer
from trainer.run.watchdog import watched
from trainer.training.announce import announce
from trainer.training.evaluate import Evaluator, open_catalogue
from trainer.training.finetune import finetune
from trainer.training.lanes import plan_lanes
from trainer.training.loss_scale import start_state
from trainer.training.phases import ClaimedRun, EpochOrder
from trainer.training.recorders import open_profiler, open_reporter, open_saver
from trainer.training.resume import Resume, check_saved_before, find_start, open_run
from trainer.training.session import Session
from trainer.training.sharded_model import ShardedModel, build_sharded_model


@contextmanager
def open_session(config: Config, out: str, resume: Resume, context: DistributedContext) -> Iterator[Session]:
    """Sets a run up and yields it, ready to train.

    Raises:
        InputError: The configuration, the data or the run directory cannot be used.
    """
    broadcast_from_rank0(context, lambda: check_metrics(config))
    broadcast_from_rank0(context, lambda: check_watched_metrics(config))
    broadcast_from_rank0(context, lambda: check_profile(config.report.profile, context))
    directory = broadcast_from_rank0(context, lambda: RunDirectory(out))
    broadcast_from_rank0(context, lambda: check_saved_before(directory))
    # A start can hang and be stopped, too, so both are watched for before the lock is taken.
    with (
        watched(context, config.train.stuck_seconds) as watchdog,
        stop_on_signals(context) as stop_requests,
        locked(directory, context) as lock,
        profile_requests(directory, context) as requests,
    ):
        claimed = claim_run(config, directory, resume, context)
        # Wrong data is refused within seconds, before the model is built, which takes longest.
        order = plan_epochs(config, claimed.start, context)
        evaluator = Evaluator(config, context, order.catalogue)
        model = build_sharded_model(config, context, order.lanes)
        origin = restore_or_finetune(claimed, model, order)
        reporter = open_reporter(claimed, order)
        with open_saver(claimed, order, lock, reporter) as saver:
            session = Session(
                claimed=claimed,
                order=order,
                model=model,
                evaluator=evaluator,
                saver=saver,
                reporter=reporter,
                histograms=Histograms(config.report.histograms_every_steps, context),
                profiler=open_profiler(claimed, order, requests, reporter),
                batches=StallTimer(
                    model.managed.batches(order.loader.batches(order.first_step, order.last_step), order.first_step)
                ),
                stop_requests=stop_requests,
                watchdog=watchdog,
                step_state=start_state(
                    config.train, claimed.start.train_state.get("step_state") if claimed.start else None
                ),
            )
            announce(session, origin)
            yield session


def claim_run(config: Config, directory: RunDirectory, resume: Resume, context: DistributedContext) -> ClaimedRun:
    """Opens the run directory, whose lock this job holds, and finds the checkpoint to resume from.

    Raises:
        InputError: The directory cannot be written, holds a run of another configuration, or contradicts `resume`.
    """
    broadcast_from_rank0(context, lambda: open_run(directory, config))
    checkpoints = Checkpoints(directory)
    broadcast_from_rank0(context, lambda: _remove_leftovers(checkpoints))  # the lock is held: no other job writes them
    started = time.monotonic()
    start = broadcast_from_rank0(context, lambda: find_start(checkpoints, resume, directory.url))
    verify_seconds = time.monotonic() - started
    return ClaimedRun(config=config, context=context, directory=directory, start=start, verify_seconds=verify_seconds)


def plan_epochs(config: Config, start: Checkpoint | None, context: DistributedContext) -> EpochOrder:
    """Finds the training data and decides the order of its samples, from the first step to the last.

    Raises:
        InputError: The data cannot be used, changed since the checkpoint, or cannot be split over so many ranks.
    """
    files = broadcast_when_done(context, lambda: find_training_files(config.data, config.train.seed))
    lanes = plan_lanes(config, files, start, context)
    first_step = start.step if start else 0
    last_step = config.train.steps if config.train.steps is not None else (config.train.epochs or 0) * lanes.steps
    if start and first_step > last_step:
        raise InputError(
            f"--out is '{start.run_url}', where training took {plural(first_step, 'step')} already, more than the "
            f"{last_step:,} of train.steps or train.epochs; raise them, choose another --out, or evaluate this run "
            "with dlrm.evaluate"
        )
    rank, world_size, seed = context.rank, context.world_size, config.train.seed
    catalogue = open_catalogue(config, context, files.files[0], start)
    negatives = Negatives(catalogue, config.data, seed) if catalogue else None
    loader = Loader(files, config.data, lanes, rank, world_size, seed, config.data.shuffle, negatives)
    return EpochOrder(
        files=files, lanes=lanes, loader=loader, catalogue=catalogue, first_step=first_step, last_step=last_step
    )


def restore_or_finetune(claimed: ClaimedRun, model: ShardedModel, order: EpochOrder) -> dict[str, Any]:
    """Fills a fresh model from the run's own checkpoint, from another run's, or from neither.

    Returns:
        Facts for run.json: `restore_seconds`, verification included, and `finetune`, each only where it applies.

    Raises:
        InputError: The checkpoint does not fit the model.
    """
    config, context = claimed.config, claimed.context

    def initialize() -> None:  # by any batch, as the step changes no weight
        model.initialize_optimizer_state(model.managed.looked_up(next(order.loader.batches(0, 1))).to(context.device))

    if claimed.start is None:
        facts = finetune(config.finetune, config.data, model, initialize, context)
        if model.averages:
            model.averages.begin()
        return facts
    initialize()  # before the restore: torch's optimizers have no state to fill before their first step
    started = time.monotonic()
    restore(claimed.start, model.tensors(), context)
    model.optimizers.tables.earlier_steps = claimed.start.train_state.get("earlier_table_steps", 0)
    model.managed.keep_rules(claimed.start.train_state.get("evict", {}))
    seconds = claimed.verify_seconds + time.monotonic() - started
    earlier = broadcast_from_rank0(context, lambda: json.loads(claimed.directory.read("run.json") or "{}"))
    finetuned = {"finetune": earlier["finetune"]} if "finetune" in earlier else {}
    return {"restore_seconds": round(seconds, 3), **finetuned}


def _remove_leftovers(checkpoints: Checkpoints) -> None:
    try:
        for name in checkpoints.remove_leftovers():
            print(f"checkpoint {name} was never committed; its files are deleted", flush=True)
    except OSError as error:
        print(
            f"the files of a checkpoint that was never committed cannot be deleted: {without_secrets(error)}",
            flush=True,
        )
