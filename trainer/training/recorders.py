"""Opens what records a run: its reporter, its profiler and its saver."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from trainer.checkpoint.saver import Saver
from trainer.checkpoint.store import Checkpoints
from trainer.run.lock import RunLock
from trainer.run.profile_requests import ProfileRequests
from trainer.run.profiler import Profiler
from trainer.run.reporter import Reporter
from trainer.training.phases import ClaimedRun, EpochOrder


def open_reporter(claimed: ClaimedRun, order: EpochOrder) -> Reporter:
    """Opens the reports of a run, which continue those up to its checkpoint."""
    running = claimed.start.train_state["running"] if claimed.start else None
    return Reporter(
        claimed.directory, claimed.config.report, claimed.context, order.last_step, order.first_step, running
    )


def open_profiler(claimed: ClaimedRun, order: EpochOrder, requests: ProfileRequests, reporter: Reporter) -> Profiler:
    """Opens the profiler of a run."""
    return Profiler(
        claimed.directory,
        claimed.config.report.profile,
        requests,
        claimed.context,
        order.first_step,
        order.last_step,
        reporter.log,
    )


@contextmanager
def open_saver(claimed: ClaimedRun, order: EpochOrder, lock: RunLock, reporter: Reporter) -> Iterator[Saver]:
    """Opens the saver of a run, which looks at the lock before each commit, and waits for its last save."""
    saver = Saver(
        Checkpoints(claimed.directory),
        claimed.config.checkpoint,
        claimed.context,
        order.first_step,
        reporter.log,
        reporter.evaluations,
        lock.check,
    )
    try:
        yield saver
    except Exception:
        # The ranks save together, so none may leave before; the error is told instead of one of the save.
        with suppress(Exception, SystemExit):
            saver.wait()
        raise
    saver.close()
