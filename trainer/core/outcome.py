"""The contract between a job and its scheduler: exit codes, and one line about the job's progress.

torchrun exits with 1 after any signal, so its exit code cannot distinguish a job that saved and stopped from a failed
job. The trainer therefore writes a line to the file that the scheduler names in `OUTCOME_VARIABLE`. Each checkpoint
replaces the line, and so does the end of the job; if the job is killed, the line of its last checkpoint is left.
This file imports only the standard library, because schedulers run where torch may be absent.
"""

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

DONE = 0
FAILED = 1
WRONG_INPUT = 2
STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later

OUTCOME_VARIABLE = "TORCHX_OUTCOME_FILE"
# The steps done in the newest checkpoint of earlier attempts, if the scheduler that restarts a job knows of one.
SAVED_STEP_VARIABLE = "TORCHX_SAVED_STEP"
# The file for how far the job is (trainer/core/progress.py).
PROGRESS_VARIABLE = "TORCHX_PROGRESS_FILE"
# The digest of the code that the scheduler shipped for this job, if it did.
CODE_VARIABLE = "TORCHX_RECSYS_CODE"
FINISHED_WORD = "finished"  # first word of the line of a job that reached its last step
STOPPED_WORD = "stopped"  # first word of the line of a job that stopped on request
SAVED_WORD = "saved"  # first word of the line of a job that has saved a checkpoint and continues
WRONG_INPUT_WORDS = "wrong input"  # first words of the line of a job that another attempt would not help


def write_outcome(line: str) -> None:
    """Writes the outcome of this job to the file that the scheduler names, if any."""
    if file := os.environ.get(OUTCOME_VARIABLE):
        # Another file is written first, so that a rank that is killed meanwhile leaves the line before. Its name has
        # the host and the process, because hosts may share the directory, and numbers of processes.
        whole = Path(f"{file}.{socket.gethostname()}.{os.getpid()}")
        try:
            whole.write_text(f"{line}\n")
            whole.replace(file)
        except OSError:  # the kubelet mounts this file alone, which then cannot be replaced, in a directory of root's
            with suppress(OSError):
                whole.unlink()
            Path(file).write_text(f"{line}\n")


def is_finished(line: str) -> bool:
    """Returns whether the job of an outcome reached its last step."""
    return line.startswith(FINISHED_WORD)


def is_stopped(line: str) -> bool:
    """Returns whether the job of an outcome stopped on request."""
    return line.startswith(STOPPED_WORD)


def is_final(line: str) -> bool:
    """Returns whether a line reports the end of a job, and not a checkpoint."""
    return bool(line) and not line.startswith(SAVED_WORD)


def saved_step(line: str) -> int:
    """Returns the steps done in the checkpoint of a line; 0 without a checkpoint."""
    found = re.search(r"step-(\d+)$", line)
    return int(found[1]) if found else 0


def step_saved_before() -> int:
    """Returns the steps done in the newest checkpoint of earlier attempts of this job; 0 if none is known."""
    return int(os.environ.get(SAVED_STEP_VARIABLE) or 0)


def code_digest() -> str:
    """Returns the digest of the code that was shipped for this job; empty if it runs what is installed."""
    return os.environ.get(CODE_VARIABLE, "")


def is_wrong_input(line: str) -> bool:
    """Returns whether the job of an outcome failed for wrong input, so that another attempt would not help."""
    return line.startswith(WRONG_INPUT_WORDS)


def environment_of_child_job() -> dict[str, str]:
    """Returns the environment for a child job, whose outcome, progress and checkpoints are not this job's."""
    own = (OUTCOME_VARIABLE, PROGRESS_VARIABLE, SAVED_STEP_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in own}
