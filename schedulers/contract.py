"""Names that jobs, schedulers and their scripts share, each spelled in one place."""

import os
import shlex
from pathlib import Path

from trainer.core.outcome import (
    FINISHED_WORD,
    OUTCOME_VARIABLE,
    STOPPED,
    STOPPED_WORD,
    WRONG_INPUT,
    WRONG_INPUT_WORDS,
)

# The variable with the host of replica 0, as TorchX's own schedulers call it, which have no constant for it.
RANK0_HOST = "TORCHX_RANK0_HOST"

STATE_FOLDER = "torchx-recsys"


def assignments(**values: object) -> str:
    """Returns lines of POSIX shell that assign these values; one that needs quotes comes with them."""
    return "".join(f"{name}={value}\n" for name, value in values.items())


# Stands before the code of every script that runs a job, so that trainer/core/outcome.py remains the only source.
SHELL_CONTRACT = assignments(
    outcome_variable=OUTCOME_VARIABLE,
    rank0_variable=RANK0_HOST,
    finished_word=FINISHED_WORD,
    stopped_word=STOPPED_WORD,
    stopped_code=STOPPED,
    wrong_input_words=shlex.quote(WRONG_INPUT_WORDS),
    wrong_input_code=WRONG_INPUT,
)


def state_directory(scheduler: str) -> Path:
    """Returns the directory in which a scheduler keeps records of this user's jobs."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / STATE_FOLDER / scheduler
