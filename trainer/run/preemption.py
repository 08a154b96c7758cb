"""Stop requests: signals set them, and an all-reduce spreads them to all ranks."""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import torch
import torch.distributed as dist

from trainer.core.distributed import DistributedContext, background_group
from trainer.core.outcome import STOPPED

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
PR_SET_PDEATHSIG = 1  # prctl(2)
# Gloo passes an all-reduce around a ring, 2 (N - 1) messages in a row: among 1,024 ranks 50 ms, at 25 µs each.
# Steps of 20 ms would wait for that, so such a job exchanges requests once in 16 calls.
RANKS_PER_CALL = 64
# One request can arrive twice: from the scheduler to the process itself, and forwarded by torchrun.
SAME_REQUEST_SECONDS = 2.0
TRAINING_WORDS = (
    "training stops after this step and saves",
    "training ends at once; it resumes from the last checkpoint",
)


class Action(IntEnum):
    """An action between two steps; all ranks take the greatest that any rank requests."""

    CONTINUE = 0
    WATCH = 1
    SAVE = 2
    STOP = 3


class Stopped(SystemExit):
    """A job stopped on request, before its last step; the process ends with exit code 75."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


class StopRequests:
    """Requests of this rank to stop, to save or to let watchers act; an all-reduce shares them with all ranks.

    All ranks stop after the same step, because a rank that stops alone would leave the others in a collective.

    Args:
        context: This process among the ranks that stop together.
        words: What the first and the second signal do, for messages.
    """

    def __init__(self, context: DistributedContext, words: tuple[str, str] = TRAINING_WORDS) -> None:
        self._context, self._words = context, words
        self._group = background_group(context)
        self._calls, self._calls_of_one = 0, -(-context.world_size // RANKS_PER_CALL)
        self._requested_at: float | None = None
        self._pending: tuple[torch.Tensor | Action, dist.Work | None] | None = None
        self._reduced = Action.CONTINUE

    @property
    def waiting_seconds(self) -> float:
        """Time since a signal requested a stop of this rank; 0 without one."""
        return 0.0 if self._requested_at is None else time.monotonic() - self._requested_at

    def all_reduce(self, save: bool = False, watch: bool = False) -> Action:
        """Returns the greatest action that any rank requested at the last all-reduce, the same on every rank.

        Every rank has to call it equally often. The all-reduce runs between two calls, so that no step waits for it.
        Among more than `RANKS_PER_CALL` ranks it runs between several calls, and those in between return CONTINUE.

        Args:
            save: Whether this rank requests a save.
            watch: Whether a watcher of this rank requests all ranks. Repeat it at every call, because greater actions
                go first.
        """
        self._calls += 1
        if self._reduced is not Action.STOP:
            if self._calls % self._calls_of_one:
                return Action.CONTINUE
            self._reduced = self._finish_all_reduce()
            local = self._local(save, watch)
            # A save that begins now fulfils this rank's request, too; passed on, the request would save twice.
            self._start_all_reduce(local if local is not self._reduced else Action.CONTINUE)
        return self._reduced

    def _local(self, save: bool, watch: bool) -> Action:
        if self._requested_at is not None:
            return Action.STOP
        return Action.SAVE if save else Action.WATCH if watch else Action.CONTINUE

    def _finish_all_reduce(self) -> Action:
        if not self._pending:
            return Action.CONTINUE
        value, work = self._pending
        if work:
            work.wait()
        return Action(int(value))

    def _start_all_reduce(self, local: Action) -> None:
        if self._context.world_size == 1:
            self._pending = local, None
            return
        value = torch.tensor(int(local))
        self._pending = value, dist.all_reduce(value, dist.ReduceOp.MAX, self._group, async_op=True)

    def take(self, number: int) -> None:
        """Takes a signal: the first requests a stop, the next ends the process and loses unsaved steps."""
        name = signal.Signals(number).name
        if self._requested_at is None:
            self._requested_at = time.monotonic()
            self._log(f"{name}: {self._words[0]}; a second signal ends it at once")
        elif self.waiting_seconds > SAME_REQUEST_SECONDS:
            self._log(f"{name}: {self._words[1]}")
            os._exit(128 + number)

    def _log(self, text: str) -> None:
        if self._context.is_rank0:
            print(text, file=sys.stderr, flush=True)


@contextmanager
def stop_on_signals(context: DistributedContext, words: tuple[str, str] = TRAINING_WORDS) -> Iterator[StopRequests]:
    """Inside the block, SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 request a stop; arguments as for StopRequests."""
    request = StopRequests(context, words)
    if dist.is_torchelastic_launched():
        _follow_parent()
    # Python runs signal handlers in the main thread only, once that leaves a collective, which may hang for minutes.
    # The wake-up descriptor is written to at once, by the C handler, and a thread reads it. signal.sigwait would need
    # the signals blocked in every thread, also in those that libraries start.
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    threading.Thread(target=_take_all, args=(request, ours), name="signals", daemon=True).start()
    # Only a signal that has a handler in Python reaches the wake-up descriptor.
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    wakeup = signal.set_wakeup_fd(theirs.fileno())
    try:
        yield request
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        theirs.close()


def _follow_parent() -> None:
    """Has the kernel send SIGTERM to this rank when torchrun dies.

    If torchrun is killed, its ranks would go on and hold the GPUs and the lock of the run. The standard library has no
    prctl, hence ctypes.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _take_all(request: StopRequests, numbers: socket.socket) -> None:
    with numbers:
        while number := numbers.recv(1):
            if number[0] in SIGNALS:
                request.take(number[0])
