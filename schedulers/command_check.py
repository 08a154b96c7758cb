"""Checks a job's command before the job is submitted: otherwise a mistake is found only after the queue."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torchx.specs import Role, macros

from schedulers.contract import NO_PROGRAM, RANK0_HOST, TIMED_OUT
from schedulers.errors import SchedulerError
from trainer.core.outcome import WRONG_INPUT, environment_of_child_job

TRAINER = ["-m", "trainer"]
SECONDS = 60  # time limit for reading a configuration from remote storage

Program = Callable[[list[str], dict[str, str]], tuple[int, str]]
"""Runs a program with variables as the job would, and returns its exit code and what it wrote to stderr."""


def check_command(role: Role, folder: Path, run: Program | None = None) -> None:
    """Refuses a role whose command the trainer refuses for its configuration, a key or a flag.

    The check runs the job's own `python`. Where that cannot run the trainer, nothing is refused.

    Args:
        role: The role of a job.
        folder: The directory in which the job runs.
        run: Runs the check; without it, that is done in the directory on this machine.

    Raises:
        SchedulerError: The command is wrong; the message is the trainer's.
    """
    filled = macros.Values(str(folder), app_id="0", replica_id="0", rank0_env=RANK0_HOST).apply(role)
    words = _words_of_trainer([word for arg in filled.args for word in _split(arg)])
    if not words:
        return
    command = ["python", "-P", *TRAINER, "--check", *words]
    code, errors = (run or partial(_run_here, folder))(command, filled.env)
    if code == TIMED_OUT:
        print(f"the command of the job was not checked: that took more than {SECONDS} s", file=sys.stderr)
    elif code == WRONG_INPUT:
        raise SchedulerError(f"{errors.strip().removeprefix('error: ')}; nothing was submitted")


def _run_here(folder: Path, command: list[str], env: dict[str, str]) -> tuple[int, str]:
    everything = environment_of_child_job() | env
    try:
        done = subprocess.run(command, cwd=folder, env=everything, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        return NO_PROGRAM, ""
    except subprocess.TimeoutExpired:
        return TIMED_OUT, ""
    return done.returncode, done.stderr


def _split(arg: str) -> list[str]:
    """Returns the words of an argument that is a command for the shell, or the argument alone."""
    return shlex.split(arg) if f" {' '.join(TRAINER)} " in arg else [arg]


def _words_of_trainer(words: list[str]) -> list[str]:
    for start in range(len(words)):
        if words[start : start + len(TRAINER)] == TRAINER:
            return words[start + len(TRAINER) :]
    return []
