"""Waits while a scheduler has no room for a job, and submits the job once another has ended."""

import time
from collections.abc import Callable
from typing import TypeVar

from schedulers.errors import SchedulerError

# Interval between attempts, each of which is a request to the controller of a full cluster.
PAUSE_SECONDS = 10

_Submitted = TypeVar("_Submitted")


class NoRoom(SchedulerError):
    """The scheduler takes no more jobs until others have ended; nothing was submitted."""


def when_there_is_room(submit: Callable[[], _Submitted], say: Callable[[str], None]) -> _Submitted:
    """Submits a job as soon as there is room for it, and prints one line while it waits.

    Args:
        submit: Submits the job and returns the result.
        say: Prints a line.
    """
    told = False
    while True:
        try:
            return submit()
        except NoRoom as error:
            if not told:
                say(f"{error}; waiting until a job has ended; Ctrl-C gives up")
            told = True
        time.sleep(PAUSE_SECONDS)
