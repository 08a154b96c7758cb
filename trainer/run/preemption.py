"""Being asked to stop: the flag that signals set, and the ranks' agreement on it."""

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
# One request can come twice: from the scheduler to the process itself, and passed on by torchrun.
SAME_REQUEST_SECONDS = 2.0


class Request(IntEnum):
    """What ranks can agree to do between two steps; of several wishes the greatest counts."""

    CONTINUE = 0
    SAVE = 1
    STOP = 2


class Stopped(SystemExit):
    """Training left before its end because it was asked to; the process ends with exit code 75."""

    def __init__(self) -> None:
        super().__init__(STOPPED)


class StopRequests:
    """Whether somebody asked the job to stop, and whether all ranks know.

    Args:
        context: This process among the ranks that leave together.
    """

    def __init__(self, context: DistributedContext) -> None:
        self._context = context
        self._group = background_group()
        self._asked_at: float | None = None
        self._vote: tuple[torch.Tensor, dist.Work] | None = None
        self._agreed = Request.CONTINUE

    @property
    def waiting_seconds(self) -> float:
        """Time since this rank was asked to stop; 0 if it was not."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    def all_reduce(self, save: bool = False) -> Request:
        """Returns, the same on every rank, the greatest wish of the ranks at the time of the last call.

        Every rank has to call it equally often. The votes travel between two calls, so that no step waits for them.

        Args:
            save: Whether this rank wishes to save.
        """
        if self._agreed is not Request.STOP:
            self._agreed = self._count()
            mine = Request.STOP if self._asked_at is not None else Request.SAVE if save else Request.CONTINUE
            # A save that is about to begin need not be wished for.
            self._cast(mine if mine is not self._agreed else Request.CONTINUE)
        return self._agreed

    def _count(self) -> Request:
        if not self._vote:
            return Request.CONTINUE
        votes, work = self._vote
        work.wait()
        return Request(int(votes.item()))

    def _cast(self, wish: Request) -> None:
        votes = torch.tensor(int(wish))
        work = dist.all_reduce(votes, dist.ReduceOp.MAX, self._group, async_op=True)
        assert work is not None
        self._vote = votes, work

    def take(self, number: int) -> None:
        """Takes a signal: the first asks to stop, the next leaves at once, which loses what is not saved."""
        name = signal.Signals(number).name
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._say(f"{name}: training stops after this step and saves; a second signal ends it at once")
        elif self.waiting_seconds > SAME_REQUEST_SECONDS:
            self._say(f"{name}: training ends at once; it goes on from the last checkpoint")
            os._exit(128 + number)

    def _say(self, text: str) -> None:
        if self._context.is_rank0:
            print(text, file=sys.stderr, flush=True)


@contextmanager
def stop_on_signals(context: DistributedContext) -> Iterator[StopRequests]:
    """Lets SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 ask to stop, as long as the block runs.

    A thread takes them, for a handler of Python's would have to wait until the main thread leaves a collective.
    """
    request = StopRequests(context)
    if dist.is_torchelastic_launched():
        _follow_parent()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    threading.Thread(target=_take_all, args=(request, ours), name="signals", daemon=True).start()
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
    """Lets the kernel send SIGTERM when torchrun dies, which otherwise leaves its ranks behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))


def _take_all(request: StopRequests, numbers: socket.socket) -> None:
    with numbers:
        while number := numbers.recv(1):
            if number[0] in SIGNALS:
                request.take(number[0])
