"""Checks a job's command before the job is submitted: otherwise a mistake is found only after the queue."""

import shlex
import subprocess
import sys
from pathlib import Path

from torchx.specs import Role, macros

from schedulers.contract import RANK0_HOST
from schedulers.errors import SchedulerError
from trainer.core.outcome import WRONG_INPUT, environment_of_child_job

TRAINER = ["-m", "trainer"]
SECONDS = 60  # time limit for reading a configuration from remote storage


def check_command(role: Role, folder: Path) -> None:
    """Refuses a role whose command the trainer refuses for its configuration, a key or a flag.

    The check runs the job's own `python`. Where that cannot run the trainer, nothing is refused.

    Args:
        role: The role of a job.
        folder: The directory in which the job runs.

    Raises:
        SchedulerError: The command is wrong; the message is the trainer's.
    """
    filled = macros.Values(str(folder), app_id="0", replica_id="0", rank0_env=RANK0_HOST).apply(role)
    words = _words_of_trainer([word for arg in filled.args for word in _split(arg)])
    if not words:
        return
    command = ("python", "-P", *TRAINER, "--check", *words)
    env = environment_of_child_job() | filled.env
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        return
    except subprocess.TimeoutExpired:
        print(f"the command of the job was not checked: that took more than {SECONDS} s", file=sys.stderr)
        return
    if done.returncode == WRONG_INPUT:
        raise SchedulerError(f"{done.stderr.strip().removeprefix('error: ')}; nothing was submitted")


def _split(arg: str) -> list[str]:
    """Returns the words of an argument that is a command for the shell, or the argument alone."""
    return shlex.split(arg) if f" {' '.join(TRAINER)} " in arg else [arg]


def _words_of_trainer(words: list[str]) -> list[str]:
    for start in range(len(words)):
        if words[start : start + len(TRAINER)] == TRAINER:
            return words[start + len(TRAINER) :]
    return []
