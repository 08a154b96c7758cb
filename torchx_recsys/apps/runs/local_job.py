"""Runs trainer jobs on this machine under torchrun, as child processes that a tool can wait for and kill.

components/launch.py also has torchrun's command, and TorchX could run it. But components do not import the trainer, and
render a shell command for a scheduler, which then owns the processes.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from trainer.core.errors import InputError
from trainer.core.outcome import FAILED, environment_of_child_job

SHOWN_CHARACTERS = 4000


@contextmanager
def start_job(ranks: int, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts `python -m trainer ARGUMENTS` and yields torchrun's process, which ends with the block.

    Args:
        ranks: Number of ranks.
        log: File for the output.
        arguments: The trainer's command and flags.
    """
    torchrun = ["trainer.launch", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, "-P", "-m", *torchrun, "-m", "trainer", *arguments]
    with log.open("wb") as output:
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment_of_child_job())
        try:
            yield job
        finally:
            job.terminate()
            job.wait()


def run_job(ranks: int, log: Path, *arguments: str) -> None:
    """Runs a job to its end; takes the arguments of `start_job`.

    Raises:
        InputError: The job failed because of its input.
        SystemExit: The job failed for another reason.
    """
    with start_job(ranks, log, *arguments) as job:
        if job.wait():
            raise error_of_failed_job(log)


def kill_ranks(job: subprocess.Popen[bytes]) -> None:
    """Kills the ranks of a job and the process that they are forked from with SIGKILL. torchrun notices, and ends."""
    with suppress(psutil.NoSuchProcess):  # if a rank has just ended by itself, torchrun ends the others
        for rank in psutil.Process(job.pid).children() if job.poll() is None else ():
            rank.kill()
    job.wait()


def error_of_failed_job(log: Path) -> InputError | SystemExit:
    """Returns the trainer's one-line error from the log; without one, prints the end of the log."""
    output = log.read_text(errors="replace")
    if found := re.search(r"^error: (.*)$", output, re.MULTILINE):
        return InputError(found[1])
    print(f"{output[-SHOWN_CHARACTERS:]}\njob '{log.stem}' failed; the end of its log is above", file=sys.stderr)
    return SystemExit(FAILED)
