"""The machine on which Slurm's commands run and the files of jobs are: this one, or a host (ssh.py).

Everything that calls a command of Slurm, or reads or writes a file of a job, goes through here.
"""

import os
import subprocess
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from schedulers import log_files, state_directory
from schedulers.contract import NO_PROGRAM
from schedulers.errors import SchedulerError

# With these, Slurm's commands find the cluster and authenticate. Their other variables filter, sort or format the
# output or, within a Slurm job, describe that job.
ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
COMMANDS = ("SLURM", "SBATCH", "SRUN", "SQUEUE", "SACCT", "SCANCEL", "SCONTROL", "SINFO")
# A controller that is restarted, or a connection that is lost, is back within minutes; `log -f` and `run --wait` must
# outlast that.
PATIENCE_SECONDS = 600


class ControllerAway(SchedulerError):
    """The controller of the cluster does not answer."""


class HostAway(ControllerAway):
    """The connection to a host was lost, and did not come back."""


Answer = subprocess.CompletedProcess[str]


class Transport:
    """This machine."""

    host = ""
    poll_seconds = log_files.POLL_SECONDS
    remedy = "run torchx where Slurm's commands work, or name a login node with -cfg host"

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables of the user."""
        return os.environ

    def call(self, *command: str, kept: Collection[str] = ()) -> Answer:
        """Runs a command of Slurm, without the variables that would change what it does.

        Args:
            command: The command.
            kept: The names of such variables that it gets all the same.
        """
        env = {name: value for name, value in os.environ.items() if name in kept or not is_of_slurm(name)}
        try:
            return subprocess.run(command, capture_output=True, text=True, env=env)
        except FileNotFoundError:
            return Answer(command, NO_PROGRAM, "", "")

    def call_once(self, *command: str, job_dir: Path, attempt: int, kept: Collection[str] = ()) -> Answer:
        """Runs a command that must not run twice, as `call` does.

        Args:
            command: The command.
            job_dir: The directory of the job.
            attempt: The number of the attempt at it.
            kept: As of `call`.
        """
        return self.call(*command, kept=kept)

    def state_directory(self, scheduler: str) -> Path:
        """Returns the directory in which a scheduler keeps records of the user's jobs."""
        return state_directory.state_directory(scheduler)

    def absolute(self, path: str) -> Path:
        """Returns a path in full."""
        return Path(path).expanduser().absolute()

    def pull(self, *paths: Path) -> None:
        """Lets `here` show files as they are now: each path is a file, of which the end suffices, or a directory."""

    def here(self, path: Path) -> Path:
        """Returns where a file that was pulled can be read."""
        return path

    def fetch(self, path: Path, to: Path, without: str) -> None:
        """Copies the files of a directory, links as what they lead to.

        Args:
            path: The directory.
            to: Where its files go; those that are there are replaced.
            without: A file or directory in it that stays.

        Raises:
            SchedulerError: There is nothing to copy, or it cannot be read.
        """
        raise SchedulerError(f"{path} is a directory of this machine; look at it there")

    def open_log(self, path: Path, position: int) -> tuple[BinaryIO, int] | None:
        """Opens a log at a position, or at its beginning if it has become shorter; None if there is no such file."""
        return log_files.open_at(path, position)

    def exists(self, path: Path) -> bool:
        """Returns whether there is a file or directory."""
        return path.exists()

    def is_readable(self, path: Path) -> bool:
        """Returns whether the user may read a file."""
        return os.access(path, os.R_OK)

    def write(self, path: Path, text: str) -> None:
        """Writes a file, and creates its directory."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def touch(self, paths: Iterable[Path]) -> None:
        """Creates empty files in directories that may have to be created, where that is possible."""
        with suppress(OSError):
            for path in paths:
                path.parent.mkdir(exist_ok=True)
                path.touch()

    def remove(self, path: Path) -> None:
        """Removes a file, if it is there."""
        path.unlink(missing_ok=True)


def is_of_slurm(variable: str) -> bool:
    """Returns whether a variable would change what Slurm's commands do."""
    return variable not in ACCESS and variable.partition("_")[0] in COMMANDS


HERE = Transport()
