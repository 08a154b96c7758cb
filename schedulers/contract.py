"""Names that jobs, schedulers and their scripts share, each spelled in one place."""

import os
import shlex
import tempfile
from pathlib import Path

from schedulers.errors import SchedulerError
from trainer.core.outcome import (
    FINISHED_WORD,
    OUTCOME_VARIABLE,
    SAVED_STEP_VARIABLE,
    SAVED_WORD,
    STOPPED,
    STOPPED_WORD,
    WRONG_INPUT,
    WRONG_INPUT_WORDS,
)

# The variable with the host of replica 0, as TorchX's own schedulers call it, which have no constant for it.
RANK0_HOST = "TORCHX_RANK0_HOST"

STATE_FOLDER = "torchx-recsys"

# What torchrun waits for its ranks to leave after a signal, before it kills them.
SHUTDOWN_TIMEOUT_SECONDS = 120

# Restarts in a row that gain no step and use up no retry; then a job has failed.
MAX_FREE_RESTARTS = 20


def assignments(**values: object) -> str:
    """Returns lines of POSIX shell that assign these values; one that needs quotes comes with them."""
    return "".join(f"{name}={value}\n" for name, value in values.items())


# Stands before the code of every script that runs a job, so that trainer/core/outcome.py remains the only source.
SHELL_CONTRACT = assignments(
    outcome_variable=OUTCOME_VARIABLE,
    saved_step_variable=SAVED_STEP_VARIABLE,
    rank0_variable=RANK0_HOST,
    finished_word=FINISHED_WORD,
    saved_word=SAVED_WORD,
    stopped_word=STOPPED_WORD,
    stopped_code=STOPPED,
    wrong_input_words=shlex.quote(WRONG_INPUT_WORDS),
    wrong_input_code=WRONG_INPUT,
)


def state_directory(scheduler: str) -> Path:
    """Returns the directory in which a scheduler keeps records of this user's jobs."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / STATE_FOLDER / scheduler


def check_state_directory() -> None:
    """Refuses a state directory in which no record can be written, before a job is submitted and its handle lost.

    Raises:
        SchedulerError: It cannot be made, or written.
    """
    folder = state_directory(".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        raise no_record(folder, error) from error


def no_record(folder: Path, error: OSError) -> SchedulerError:
    """Returns the error of a directory in which no record of a job can be written."""
    return SchedulerError(f"cannot keep a record of the job in {folder}: {error}; set XDG_STATE_HOME")
