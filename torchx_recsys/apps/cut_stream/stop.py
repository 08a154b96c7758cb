"""Stop requests of a job that is one process: the first signal is noted, the second ends the process."""

import os
import signal
import sys
import time
from types import FrameType

from trainer.core.outcome import STOPPED

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)

SAME_REQUEST_SECONDS = 2.0  # time within which a request may arrive twice, from a scheduler and from its supervisor


class Stopped(SystemExit):
    """A job stopped on request; the process ends with exit code 75."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


class StopRequests:
    """Notes signals, between which the job goes on until it calls `check`.

    Unlike `stop_on_signals` of the trainer, which stops all ranks together, it does without torch.
    """

    def __init__(self) -> None:
        self._requested_at: float | None = None
        for number in SIGNALS:
            signal.signal(number, self._take)

    def check(self) -> None:
        """Raises Stopped if a signal has come."""
        if self._requested_at is not None:
            raise Stopped

    def _take(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self._requested_at is None:
            self._requested_at = time.monotonic()
            print(f"{name}: the job ends; a second signal ends it at once", file=sys.stderr, flush=True)
        elif time.monotonic() - self._requested_at > SAME_REQUEST_SECONDS:
            os._exit(128 + number)
