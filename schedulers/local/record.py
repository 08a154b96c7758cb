"""What a local job leaves on disk for every shell of this host to read: one directory per job."""

import fcntl
import json
import os
import shutil
import signal
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from schedulers import contract
from schedulers.errors import SchedulerError
from schedulers.local.processes import kill_all_with, processes_with
from trainer.core.outcome import OUTCOME_VARIABLE

JOBS_KEPT = 100
DAYS_KEPT = 30
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True, kw_only=True)
class Replica:
    """How one replica is started, and the files that it writes."""

    role: str
    number: int
    args: list[str]
    env: dict[str, str]
    cwd: str | None
    stdout: str
    stderr: str
    combined: str

    @property
    def name(self) -> str:
        """As `torchx log` spells it, after the handle."""
        return f"{self.role}/{self.number}"

    @property
    def error_file(self) -> Path:
        """Where torchrun, or the program itself, says what went wrong."""
        return Path(self.env["TORCHELASTIC_ERROR_FILE"])


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job as it was submitted."""

    app_id: str
    name: str
    roles: list[dict[str, Any]]
    replicas: list[Replica]
    max_retries: int
    grace_seconds: int
    detach: bool
    log_dir: str


@dataclass(kw_only=True)
class Process:
    """The process of one replica."""

    pid: int
    exit_code: int | None = None


@dataclass(kw_only=True)
class Progress:
    """Where a job is; the supervisor of the job writes it."""

    state: str = "SUBMITTED"
    restarts: int = 0
    message: str = ""
    supervisor: int = 0
    processes: list[Process] = field(default_factory=list)


class Record:
    """The directory of one job: `job.json`, `progress.json`, `outcome`, `supervisor.log`, `lock`, and the job's logs.

    The supervisor holds the lock from before the record can be seen until it has written its last word, so that nobody
    takes a dead supervisor, or another process with its number, for a live one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcome_file = folder / "outcome"
        # In the environment of every process of the job, and of no other.
        self.mark = f"{OUTCOME_VARIABLE}={self.outcome_file}"
        self.delete_file = folder / "delete"

    @classmethod
    def of(cls, app_id: str) -> "Record | None":
        """Returns the record of a job, or None if there is none."""
        record = cls(state_directory() / app_id)
        return record if (record.folder / "job.json").exists() else None

    @classmethod
    def all(cls) -> list["Record"]:
        """Returns every record on this host, the newest first."""
        found = []
        for file in state_directory().glob("*/job.json"):
            with suppress(FileNotFoundError):  # removed meanwhile
                found.append((file.stat().st_mtime, file.parent))
        return [cls(folder) for _, folder in sorted(found, reverse=True)]

    def create(self, job: Job) -> TextIO:
        """Makes the directory and returns the lock, taken.

        Raises:
            SchedulerError: The directory cannot be made.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700)
        except OSError as error:
            raise SchedulerError(f"cannot keep a record of the job: {error}; set XDG_STATE_HOME") from error
        lock = (self.folder / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._write("job.json", asdict(job))
        return lock

    def job(self) -> Job:
        """Reads the job as it was submitted."""
        content = json.loads((self.folder / "job.json").read_text())
        return Job(**content | {"replicas": [Replica(**replica) for replica in content["replicas"]]})

    def write(self, progress: Progress) -> None:
        """Writes where the job is; readers see the old or the new."""
        self._write("progress.json", asdict(progress))

    def progress(self) -> Progress:
        """Reads where the job is; a job whose supervisor died has failed."""
        supervised = self.supervised()  # asked first: the last word is written before the lock is let go
        file = self.folder / "progress.json"
        progress = Progress()
        if file.exists():
            content = json.loads(file.read_text())
            progress = Progress(**content | {"processes": [Process(**process) for process in content["processes"]]})
        if supervised or progress.state in ENDED:
            return progress
        return replace(progress, state="FAILED", message=self._death(progress.supervisor))

    def outcome(self) -> str:
        """The line that the job left when it ended in order: `finished ...`, `stopped ...`, or nothing."""
        return self.outcome_file.read_text().strip() if self.outcome_file.exists() else ""

    def last_words(self) -> str:
        """What the supervisor said last of its own errors; nothing if it had none."""
        lines = (self.folder / "supervisor.log").read_text().splitlines()
        return lines[-1].strip() if lines else ""

    def supervised(self) -> bool:
        """Tells whether the supervisor of the job lives."""
        with (self.folder / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def cancel(self) -> None:
        """Asks the supervisor to end the job; does not wait."""
        supervisor = self.progress().supervisor
        if supervisor and self.supervised():
            os.kill(supervisor, signal.SIGTERM)

    def delete(self) -> None:
        """Removes the record. The job is cancelled first if it runs, and its supervisor then removes the record."""
        self.delete_file.touch()
        self.cancel()
        if not self.supervised():
            kill_all_with(self.mark)
            self.remove()

    def remove(self) -> None:
        """Removes the directory, for readers all at once; somebody else may be doing it at the same time."""
        (self.folder / "job.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _death(self, supervisor: int) -> str:
        if not supervisor:
            return "the job was never started: torchx was killed while it submitted it"
        left = ", ".join(map(str, processes_with(self.mark)))
        there = f"; it left process {left}, which `torchx delete` kills" if left else ""
        why = f"died: {said}" if (said := self.last_words()) else "was killed or lost its machine"
        return f"the supervisor of the job (process {supervisor}) {why}{there}"

    def _write(self, name: str, content: dict[str, Any]) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(content, indent=2))
        part.replace(self.folder / name)


def state_directory() -> Path:
    """Where the records of this host are. A home directory that several hosts share keeps them apart."""
    return contract.state_directory("local") / socket.gethostname()


def prune() -> None:
    """Removes the records of ended jobs that are too old or too many."""
    oldest = time.time() - DAYS_KEPT * 24 * 3600
    for position, record in enumerate(Record.all()):
        with suppress(FileNotFoundError):  # removed meanwhile
            surplus = position >= JOBS_KEPT or (record.folder / "job.json").stat().st_mtime < oldest
            if surplus and not record.supervised():
                record.remove()
