"""The trainer on several ranks, all forked from one process which has imported torch and TorchRec."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
from forked import FORKS, QUIET
from ranks import run_on_ranks


class ForkedRanks:
    """`python -m trainer ARGUMENTS` on several ranks, to be waited for or killed."""

    def __init__(self, ranks: int, arguments: list[str], log: Path) -> None:
        sys.audit("subprocess.Popen", sys.executable, arguments, None, None)  # which multiprocessing does not tell
        os.environ |= QUIET | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        self._log = log
        self._process = FORKS.Process(target=_launch, args=(ranks, arguments, log))
        self._process.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def end(self) -> str:
        """Waits for the end, which has to be a good one, and returns the output."""
        self._process.join(600)
        assert self._process.exitcode == 0, self._log.read_text()
        return self._log.read_text()

    def kill(self) -> None:
        """Kills all processes at once."""
        assert self._process.pid
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it may have ended by itself
            ranks = psutil.Process(self._process.pid).children(recursive=True)
            os.killpg(self._process.pid, signal.SIGKILL)
            for one in ranks:
                one.kill()
        self._process.join()


def _launch(ranks: int, arguments: list[str], log: Path) -> None:
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    run_on_ranks(ranks, _run, arguments)


def _run(arguments: list[str]) -> None:
    from trainer.__main__ import main

    if code := main(arguments):
        sys.exit(code)
