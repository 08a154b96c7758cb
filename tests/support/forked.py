"""The trainer in a process of its own that is forked from one which has imported torch and TorchRec.

Importing takes 4 of the 5 processor seconds that a small run needs; the rest of a process is as ever.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

from trainer.commands import COMMANDS

QUIET = {"TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Variables of every trainer: no progress bar, no GPU."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([f"trainer.{function.partition(':')[0]}" for function, _ in COMMANDS.values()])


class ForkedTrainer:
    """`python -m trainer ARGUMENTS`, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: list[str], environment: dict[str, str], output: Path, errors: Path) -> None:
        # Read by tqdm and torch when they are imported, in the process that all others come from.
        os.environ |= QUIET | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        sys.audit("subprocess.Popen", sys.executable, arguments, None, None)  # which multiprocessing does not tell
        self._process = FORKS.Process(target=_run, args=(arguments, environment, output, errors))
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("trainer", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills it."""
        self._process.kill()


def _run(arguments: list[str], environment: dict[str, str], output: Path, errors: Path) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for stream, file in ((1, output), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.argv[1:] = arguments
    sys.path[:0] = [os.getcwd(), *environment["PYTHONPATH"].split(os.pathsep)]
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
