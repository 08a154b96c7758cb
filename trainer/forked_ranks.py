"""Starts the ranks of a host as forks of one process, which has imported what they run.

To import torch and TorchRec takes 2.5 s of processor time, as much as all else that a small job does before its first
step; its copy in a fork takes none, and ranks share the memory. Python's own forkserver, with which torchrun can start
functions, was weighed: it imports everything once more, a signal to a job's processes ends it, and torchrun takes its
end for that of all ranks.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from trainer.__main__ import leave, run
from trainer.core.outcome import FAILED

PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
POLL_SECONDS = 0.05


class RankTemplate:
    """A copy of this process, as it is now, which is forked for every rank.

    This process has threads once torchrun has a store, and a fork gets the locks that they hold but not the threads;
    the template never has any. Ranks are made children of this process, so that it sees how they end, and all looks as
    if it had started them itself. The template ends with this process.
    """

    def __init__(self) -> None:
        # A process whose parent ends becomes a child of its nearest ancestor that has asked for it.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._connection, theirs = Pipe()
        if os.fork() == 0:
            self._connection.close()
            _serve(theirs)
        theirs.close()

    def start(self, words: tuple[str, ...], environment: dict[str, str], files: list[str | None]) -> "Rank":
        """Starts a rank.

        Args:
            words: The trainer's command and its arguments.
            environment: All variables of the rank.
            files: Where its output and its errors go; None is where those of this process go.

        Raises:
            OSError: No process could be started.
        """
        self._connection.send((words, environment, files))
        answer = self._connection.recv()
        if isinstance(answer, OSError):
            raise answer
        return Rank(answer)


class Rank:
    """A child process that `subprocess` did not start, with the methods of its Popen that torchrun uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the process runs."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float) -> int:
        """Returns the exit code once the process has ended.

        Raises:
            TimeoutExpired: It still runs after so many seconds.
        """
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(POLL_SECONDS)
        return code


def _serve(connection: Connection) -> NoReturn:
    """Forks a rank for every request, until the requesting process has ended."""
    _name_process("rank template")
    os.setsid()
    # A signal to all processes of a job is for its ranks and for torchrun. Signals are not ignored but blocked: a new
    # rank, too, would ignore them for a moment.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        try:
            request = connection.recv()
        except (EOFError, ConnectionResetError):
            os._exit(0)
        try:
            answer: Any = _start_orphan(connection, mask, request)
        except OSError as error:
            answer = error
        connection.send(answer)


def _start_orphan(connection: Connection, mask: set[int], request: tuple) -> int:
    """Starts a rank that has already lost its parent, and returns its process id once it has a session of its own."""
    ours, theirs = os.pipe()
    parent = os.fork()
    if parent == 0:
        between = os.getpid()
        try:
            if os.fork() == 0:
                connection.close()
                os.close(ours)
                # A rank stops when its parent dies (trainer/run/preemption.py), which must not be the process between.
                while os.getppid() == between:
                    time.sleep(POLL_SECONDS / 50)
                _become_rank(theirs, mask, *request)
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(parent, 0)
    with os.fdopen(ours) as pipe:
        pid = pipe.read()
    if not pid:
        raise BlockingIOError("a process for a rank could not be started")
    return int(pid)


def _become_rank(
    started: int, mask: set[int], words: tuple[str, ...], environment: dict[str, str], files: list[str | None]
) -> NoReturn:
    """Runs the trainer as a fresh process of `python -m trainer WORDS` would."""
    try:
        os.setsid()  # torchrun sends signals to the process group of the rank
        _name_process(f"rank {environment['RANK']}")
        os.write(started, str(os.getpid()).encode())
        os.close(started)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for stream, file in enumerate(files, 1):
            if file:
                os.dup2(os.open(file, os.O_WRONLY), stream)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = words
        run([*words])
    except BaseException as error:
        # Not to the caller, which serves requests.
        sys.excepthook(type(error), error, error.__traceback__)
        leave(FAILED)


def _name_process(name: str) -> None:
    """Gives this process the name that `ps -e` and `top` show, 15 characters at most."""
    Path("/proc/self/comm").write_text(name)
