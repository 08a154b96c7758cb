"""Reports where a rank is stuck, while its job still runs."""

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.core.distributed import DistributedContext

COLLECTIVES = "distributed_c10d.py"  # torch's file of collectives: its frame names the collective that a rank waits in


class Watchdog:
    """Prints the stack of this rank when it makes no progress; every rank has its own watchdog.

    NCCL has a watchdog, Gloo has none, and neither knows the step. faulthandler.dump_traceback_later does not, either.

    Args:
        context: This process among the ranks.
        stuck_seconds: Time without progress. Less than `train.collective_timeout_seconds`, which ends the job.
    """

    def __init__(self, context: DistributedContext, stuck_seconds: float) -> None:
        self._rank, self._stuck_seconds = context.rank, stuck_seconds
        self._watched = threading.get_ident()
        self._doing, self._since = "the start", time.monotonic()
        self._stopped = threading.Event()

    def note(self, doing: str) -> None:
        """Records progress, and the work that follows."""
        self._doing, self._since = doing, time.monotonic()

    def watch(self) -> None:
        """Watches until `stop`."""
        reported = None
        while not self._stopped.wait(self._stuck_seconds / 10):
            since = self._since
            # Once for each stop: a rank that waits for a slow one recovers, and must not fill the log.
            if time.monotonic() - since >= self._stuck_seconds and since != reported:
                print(self._report(), file=sys.stderr, flush=True)
                reported = since

    def stop(self) -> None:
        """Ends watching."""
        self._stopped.set()

    def _report(self) -> str:
        stack = traceback.extract_stack(sys._current_frames()[self._watched])
        where = next((frame for frame in reversed(stack) if frame.filename.endswith(COLLECTIVES)), stack[-1])
        return (
            f"rank {self._rank} has been stuck for {time.monotonic() - self._since:.0f} s in {self._doing}, in "
            f"{where.name} ({where.filename}:{where.lineno}):\n{''.join(traceback.format_list(stack))}"
        )


@contextmanager
def watched(context: DistributedContext, stuck_seconds: float) -> Iterator[Watchdog]:
    """Watches this thread as long as the block runs."""
    watchdog = Watchdog(context, stuck_seconds)
    threading.Thread(target=watchdog.watch, name="watchdog", daemon=True).start()
    try:
        yield watchdog
    finally:
        watchdog.stop()
