"""Processes of this host, as Linux describes them in /proc."""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
SECONDS_TO_DIE = 10

_libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Lets this process get SIGTERM when its parent dies, however it dies."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def processes_with(variable: str) -> list[int]:
    """The processes whose environment holds `NAME=VALUE`, which all that they start inherit."""
    return sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*") if _has(folder, variable.encode()))


def kill_all_with(variable: str) -> None:
    """Kills the processes whose environment holds `NAME=VALUE`, and those that they start meanwhile."""
    deadline = time.monotonic() + SECONDS_TO_DIE
    while (found := processes_with(variable)) and time.monotonic() < deadline:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _has(folder: Path, variable: bytes) -> bool:
    try:
        return variable in (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # it has gone, or is somebody else's
        return False
