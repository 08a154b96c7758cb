"""Processes of this host, found by their environment."""

import ctypes
import signal
import time
from contextlib import suppress

import psutil

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
SECONDS_TO_DIE = 10

_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Makes the kernel send SIGTERM to this process when its parent dies, even by SIGKILL."""
    # Neither the standard library nor psutil offers prctl.
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Returns the processes with this environment variable, which all processes that they start inherit."""
    # The environment is None for a process that has ended or belongs to another user.
    return [each for each in psutil.process_iter(["environ"]) if (each.info["environ"] or {}).get(variable) == value]


def kill_all_with(variable: str, value: str) -> None:
    """Kills all processes with this environment variable, including children that start meanwhile."""
    deadline = time.monotonic() + SECONDS_TO_DIE
    while (found := processes_with(variable, value)) and time.monotonic() < deadline:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # Not psutil.wait_procs: it takes the exit codes of this process's children from their Popen objects.
        time.sleep(0.02)
