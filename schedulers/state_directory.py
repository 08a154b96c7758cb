"""The directory in which schedulers keep records of this user's jobs."""

import os
import tempfile
from pathlib import Path

from schedulers.errors import SchedulerError

STATE_FOLDER = "torchx-recsys"


def state_directory(scheduler: str) -> Path:
    """Returns the directory in which a scheduler keeps records of this user's jobs."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / STATE_FOLDER / scheduler


def check_state_directory() -> None:
    """Refuses an unwritable state directory before a job is submitted, whose handle would be lost without a record.

    Raises:
        SchedulerError: The directory cannot be created or written.
    """
    folder = state_directory(".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        raise no_record(folder, error) from error


def no_record(folder: Path, error: OSError) -> SchedulerError:
    """Returns the error for a directory in which no record of a job can be written."""
    return SchedulerError(f"cannot keep a record of the job in {folder}: {error}; set XDG_STATE_HOME")


def damaged_record(file: Path) -> SchedulerError:
    """Returns the error for a damaged record."""
    return SchedulerError(
        f"{file} is damaged: put a copy back, or delete the directory {file.parent} to forget the job"
    )
