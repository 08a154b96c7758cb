"""Sets a training run up in four phases: claim its directory, plan its epochs, build its model, fill the model.

The phases are ordered by cost, so that a wrong configuration is refused before anything slow or lasting happens.
`begin_job` claims; `session_of` does the rest. `announce` is the first to write to the run directory.
"""

import os
import shlex
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainer.checkpoint.restore import restore
from trainer.checkpoint.saver import Saver, Staging
from trainer.checkpoint.store import Chain, Checkpoints
from trainer.checkpoint.verify import verify_together
from trainer.config.root import Config, to_toml
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.progress import PROGRESS, TrainingProgress
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import digest
from trainer.data.columns import RecordedTypes
from trainer.metrics.checks import check_metrics, check_watched_metrics
from trainer.plan.make_plan import PLANNED_FOR
from trainer.run.lock import RunLock, locked
from trainer.run.preemption import StopRequests, stop_on_signals
from trainer.run.provenance import describe_run
from trainer.run.reporter import Reporter, StallTimer
from trainer.run.step_clock import skip_unrecorded_ranges
from trainer.run.watchdog import Watchdog, watched
from trainer.training.epochs import EpochOrder, plan_epochs
from trainer.training.evaluate import Evaluator
from trainer.training.extensions import found
from trainer.training.finetune import finetune
from trainer.training.loss_scale import StepState, start_state
from trainer.training.resume import Resume, check_saved_before, find_start, open_run
from trainer.training.session import ClaimedRun, Session
from trainer.training.sharded_model import ShardedModel, build_sharded_model
from trainer.training.table_vectors import fill_from_vectors
from trainer.training.watchers import RunView, StopRequest, Watcher, make_watchers

ENDED_WITHOUT_A_WORD = "ended without a word: killed, or by an error that its log has"


@dataclass(frozen=True)
class Job:
    """The resources that a job holds from its start to its end.

    Attributes:
        claimed: The run directory.
        watchdog: Reports a rank that is stuck.
        stop_requests: Signals that request a stop.
        lock: The lock of the run directory.
        staging: The copy of the state in memory, from which checkpoints are written.
        step_state: State that later steps need besides weights and optimizer state.
    """

    claimed: ClaimedRun
    watchdog: Watchdog
    stop_requests: StopRequests
    lock: RunLock
    staging: Staging
    step_state: StepState


@contextmanager
def open_session(config: Config, out: str, resume: Resume, context: DistributedContext) -> Iterator[Session]:
    """Sets a run up and yields it, ready to train.

    Raises:
        InputError: The configuration, the data or the run directory cannot be used.
    """
    with (
        begin_job(config, out, resume, context) as job,
        session_of(job, plan_epochs(config, job.claimed.start, context)) as session,
    ):
        yield session


@contextmanager
def begin_job(config: Config, out: str, resume: Resume, context: DistributedContext) -> Iterator[Job]:
    """Claims a run directory, and yields the resources of the job until it ends.

    Raises:
        InputError: The configuration or the run directory cannot be used.
    """
    skip_unrecorded_ranges()
    broadcast_from_rank0(context, lambda: check_metrics(config))
    broadcast_from_rank0(context, lambda: check_watched_metrics(config))
    for check in found(config, "check"):
        broadcast_from_rank0(context, lambda check=check: check(config, context))
    watchers = make_watchers(config)
    directory = broadcast_from_rank0(context, lambda: RunDirectory(out))
    broadcast_from_rank0(context, lambda: check_saved_before(directory))
    # The watchdog and the signal handlers come first: waiting for the lock can hang, and must react to a signal.
    with (
        watched(context, config.train.stuck_seconds) as watchdog,
        stop_on_signals(context) as stop_requests,
        locked(directory, context) as lock,
    ):
        claimed = claim_run(config, directory, resume, context, watchers)
        step_state = _first_step_state(claimed)
        yield Job(claimed, watchdog, stop_requests, lock, Staging(), step_state)


@contextmanager
def session_of(job: Job, order: EpochOrder, model: ShardedModel | None = None) -> Iterator[Session]:
    """Yields a session that trains on an order of samples.

    Args:
        job: The resources of the job.
        order: The order.
        model: The model of the session before; None to build and fill it, in the first session of a job.
    """
    claimed, origin = job.claimed, None
    config, context = claimed.config, claimed.context
    # The evaluator opens the evaluation data: wrong data is refused within seconds, before the slow build of the model.
    evaluator = Evaluator(_evaluated(config, order), context, order.types, order.catalogue)
    if model is None:
        model = build_sharded_model(config, context, order.lanes, claimed.directory)
        origin = restore_or_finetune(claimed, model, order.types)
        continue_chain(job, model)
    reporter, stop_request = _open_reporter(claimed, order), StopRequest()
    if context.is_rank0:
        PROGRESS.begin(_begun(claimed, order), reporter.log)
    # Closed here, because garbage collection may close the loader in the start of a thread, and joining threads there
    # waits forever.
    with closing(order.batches()) as batches, _open_saver(job, order, reporter) as saver:
        session = Session(
            claimed=claimed,
            order=order,
            model=model,
            evaluator=evaluator,
            saver=saver,
            reporter=reporter,
            view=RunView(
                config=config,
                context=context,
                directory=claimed.directory,
                _reporter=reporter,
                _weights=model.weights,
                _curves=lambda: evaluator.calibration_curves,
                _stop=stop_request,
                _gradients=model.optimizers.gradients,
            ),
            stop_request=stop_request,
            batches=StallTimer(model.id_map.batches(batches, order.steps_done, order.unused_since)),
            stop_requests=job.stop_requests,
            watchdog=job.watchdog,
            step_state=job.step_state,
        )
        if origin is not None:
            announce(session, origin)
        session.tuners.extend(tuner(session) for tuner in found(config, "tuner"))
        for watcher in claimed.watchers:
            watcher.begin(session.view, order.steps_done, order.last_step)
        yield session


def _evaluated(config: Config, order: EpochOrder) -> Config:
    """Returns the configuration with the validation data of an order of samples."""
    if not order.evaluated_first:
        return config
    data = config.data.model_copy(update={"validation": [file.url for file in order.files.files]})
    return config.model_copy(update={"data": data})


def _first_step_state(claimed: ClaimedRun) -> StepState:
    """Returns the step state that a job begins with."""
    saved = claimed.start.train_state.get("step_state") if claimed.start else None
    return start_state(claimed.config.train, saved)


def claim_run(
    config: Config,
    directory: RunDirectory,
    resume: Resume,
    context: DistributedContext,
    watchers: Sequence[Watcher],
) -> ClaimedRun:
    """Opens the run directory and finds the checkpoint to resume from; this job holds the directory's lock.

    Raises:
        InputError: The directory cannot be written, holds a run of another configuration, or contradicts `resume`.
    """
    config = broadcast_from_rank0(context, lambda: open_run(directory, config))
    checkpoints = Checkpoints(directory)
    # Safe because the lock is held: no other job can be writing an uncommitted checkpoint.
    broadcast_from_rank0(context, lambda: _remove_leftovers(checkpoints))
    started = time.monotonic()
    start = verify_together(context, lambda find: find_start(checkpoints, resume, directory.url, find))
    verify_seconds = time.monotonic() - started
    return ClaimedRun(
        config=config,
        context=context,
        directory=directory,
        checkpoints=checkpoints,
        start=start,
        verify_seconds=verify_seconds,
        watchers=watchers,
    )


def _remove_leftovers(checkpoints: Checkpoints) -> None:
    try:
        for name in checkpoints.remove_leftovers():
            print(f"checkpoint {name} was never committed; its files are deleted", flush=True)
    except OSError as error:
        print(
            f"the files of a checkpoint that was never committed cannot be deleted: {without_secrets(error)}",
            flush=True,
        )


def restore_or_finetune(claimed: ClaimedRun, model: ShardedModel, types: RecordedTypes) -> dict[str, Any]:
    """Fills a fresh model from the checkpoint of this run or, to fine-tune, of another run; or leaves it as it is.

    Returns:
        Facts for run.json: `restore_seconds`, which includes verification, and `finetune`, each only if it applies.

    Raises:
        InputError: The checkpoint does not fit the model.
    """
    config, context = claimed.config, claimed.context
    # Torch makes dense optimizer state at the first step. Without it here, a restore would skip the state, and a save
    # before the first step would lack it.
    model.optimizers.create_dense_state()
    if claimed.start is None:
        given = fill_from_vectors(config, model, context)
        facts = finetune(config.finetune, config.data, types, model, context, given)
        if model.averages:
            model.averages.begin()
        return facts
    grows = config.checkpoint.grow_tables
    if grows and model.averages:
        model.averages.begin()  # gives new rows an average; the restore overwrites all others
    started = time.monotonic()
    restore(claimed.start, model.restoring(claimed.start.train_state), context, grown=grows)
    model.optimizers.tables.earlier_steps = claimed.start.train_state.get("earlier_table_steps", 0)
    seconds = claimed.verify_seconds + time.monotonic() - started
    earlier = broadcast_from_rank0(context, claimed.directory.facts)
    finetuned = {"finetune": earlier["finetune"]} if "finetune" in earlier else {}
    return {"restore_seconds": round(seconds, 3), **finetuned}


def continue_chain(job: Job, model: ShardedModel) -> None:
    """Copies the restored state, so that the next checkpoint can be a delta on the checkpoint it came from.

    Under another plan the next checkpoint is whole: a chain identifies local shards by their offsets.
    """
    claimed = job.claimed
    start, context = claimed.start, claimed.context
    if start is None or claimed.config.checkpoint.full_every == 1:
        return

    def chain() -> Chain | None:
        is_same = digest(RunDirectory(start.url).read_json("plan.json")) == digest(model.plan_json)
        return claimed.checkpoints.chain(start.step) if is_same else None

    if found := broadcast_from_rank0(context, chain):
        job.staging.copy(model.tensors())
        job.staging.chain = found


def _begun(claimed: ClaimedRun, order: EpochOrder) -> TrainingProgress:
    """Returns how far the job is before its first step."""
    step, url = order.steps_done, claimed.directory.url
    return TrainingProgress(
        step=step,
        last_step=order.last_step,
        saved_step=step,
        saved=claimed.checkpoints.saved_at(step) if step else None,
        run_directory=without_secrets(url) if "://" in url else os.path.abspath(url),
        time=time.time(),
    )


def _open_reporter(claimed: ClaimedRun, order: EpochOrder) -> Reporter:
    """Opens the reports of a run; a resumed run continues the reports up to its checkpoint."""
    # Sums of the unfinished report interval. A new order begins a new interval, so it gets none.
    start = claimed.start if order.steps_done > order.steps_before else None
    running = start.train_state["running"] if start else None
    return Reporter(
        claimed.directory, claimed.config.report, claimed.context, order.last_step, order.steps_done, running
    )


@contextmanager
def _open_saver(job: Job, order: EpochOrder, reporter: Reporter) -> Iterator[Saver]:
    """Opens the saver of a run, which checks the lock before each commit; waits for its last save at the end."""
    saver = Saver(
        job.claimed.checkpoints,
        job.claimed.config.checkpoint,
        job.claimed.context,
        order.steps_done,
        reporter.log,
        reporter.evaluations,
        job.lock.check,
        job.staging,
    )
    try:
        yield saver
    except Exception:
        # The ranks save together, so this rank must not leave before the save ends. Errors of the save are dropped in
        # favor of the original error.
        with suppress(Exception, SystemExit):
            saver.wait()
        raise
    saver.close()


def announce(session: Session, origin: dict[str, Any]) -> None:
    """Prints the plan and the facts of the run, and writes config.toml, plan.json and run.json.

    Setup writes none of them earlier: an attempt that is refused must leave the files of earlier attempts unchanged.

    Args:
        session: The run.
        origin: Facts for run.json about the weights that training starts from; empty for a start from scratch.
    """
    model, log = session.model, session.reporter.log
    if session.context.is_rank0:
        earlier = session.directory.facts()
        facts = {
            "plan": digest(model.plan_json),
            PLANNED_FOR: model.planned_for,
            "data": session.order.files.fingerprint,
            "lanes": session.order.lanes.lanes,
            "communication_bytes_per_step": model.communication_bytes,
            **origin,
            **_measured_before(session, earlier),
            "state": "running",
            "starts": [*earlier.get("starts", []), _start(session, earlier)],
        }
        session.directory.write("config.toml", to_toml(session.config))
        session.directory.write_json("plan.json", model.plan_json)
        session.directory.write_json("run.json", describe_run(session.context, **facts))
    log(f"{model.plan_table}\n")
    log(
        f"{plural(session.order.files.rows, 'sample')} in {plural(len(session.order.files.files), 'file')}, "
        f"{plural(session.order.lanes.steps, 'step')} per epoch, "
        f"{plural(session.context.world_size, 'rank')} on {session.context.device.type}"
    )
    log(f"communication volume per step: {_communication(session)}")
    if start := session.claimed.start:
        log(f"resumed after step {start.step:,} from {start.url}, restored in {origin['restore_seconds']:.1f} s")
    url = session.directory.url
    log(f"run directory {url}; watch: torchx run tools.tensorboard --logdir {shlex.quote(url)}\n")


def _measured_before(session: Session, earlier: dict[str, Any]) -> dict[str, Any]:
    """Returns the measurements in run.json if the run has no steps left; otherwise the end of the run replaces them."""
    is_complete = session.order.steps_done >= session.order.last_step
    return {"measured": earlier["measured"]} if is_complete and "measured" in earlier else {}


def _start(session: Session, earlier: dict[str, Any]) -> dict[str, Any]:
    """Describes the start of this attempt, and the end of the attempt before as far as it is known."""
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "step": session.order.steps_done,
        "ranks": session.context.world_size,
        "host": socket.gethostname(),
        "after": earlier.get("outcome") or (ENDED_WITHOUT_A_WORD if earlier else ""),
    }


def _communication(session: Session) -> str:
    volume, comms = session.model.communication_bytes, session.config.comms
    saved = f"; {volume['fp32'] / 2**20:,.2f} in fp32"
    return ", ".join(
        f"{direction} {volume[direction] / 2**20:,.2f} MiB ({precision}{saved if precision != 'fp32' else ''})"
        for direction, precision in (("forward", comms.forward), ("backward", comms.backward))
    )
