"""The record of a local job on disk, one directory per job, which every shell of this host can read."""

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

from schedulers.contract import MAX_FREE_RESTARTS
from schedulers.first_error import tail
from schedulers.local.processes import kill_all_with, processes_with
from schedulers.predecessors import ENDED, Predecessor
from schedulers.state_directory import damaged_record, no_record, state_directory
from trainer.core.outcome import OUTCOME_VARIABLE
from trainer.core.progress import PROGRESS_FILE, TrainingProgress, read_progress, step_of

# Part of the line that a supervisor writes to the logs between two attempts.
STARTING_AGAIN = "starting again"
POLL_SECONDS = 0.05
STATES = ("SUBMITTED", "PENDING", "RUNNING", *ENDED)
JOBS_KEPT = 100
DAYS_KEPT = 30
# Space on the disk for the final state of a job, should the disk be full by then.
RESERVED_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class Replica:
    """The command of one replica, and the files that it writes."""

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
        """The name that `torchx log` takes after the handle."""
        return f"{self.role}/{self.number}"

    @property
    def error_file(self) -> Path:
        """The file to which torchrun, or the program itself, writes its first error."""
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
    # Records of earlier versions do not have these.
    max_free_restarts: int = MAX_FREE_RESTARTS
    predecessors: list[Predecessor] = field(default_factory=list)


def being_cancelled(job: Job) -> str:
    """Returns the message of a job that is being cancelled."""
    return f"being cancelled; killed after {job.grace_seconds} seconds"


@dataclass(kw_only=True)
class Process:
    """The process of one replica."""

    pid: int
    exit_code: int | None = None
    ended: float = 0.0  # seconds since the epoch


@dataclass(kw_only=True)
class Progress:
    """The state of a job, which its supervisor writes."""

    state: str = "SUBMITTED"
    restarts: int = 0
    message: str = ""
    supervisor: int = 0
    processes: list[Process] = field(default_factory=list)


class Record:
    """The directory of one job: `job.json`, `progress.json`, `supervisor.log`, `lock`, `reserve`, what the job writes.

    The job writes its logs, `outcome` and `training.json`.
    The supervisor holds the lock from before the record can be seen until it has written the final state, so that a
    dead supervisor, or another process with its pid, is never taken for a live one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcome_file = folder / "outcome"
        self.training_file = folder / PROGRESS_FILE
        self.supervisor_log = folder / "supervisor.log"
        self.cancel_file = folder / "cancel"
        self.delete_file = folder / "delete"
        self._reserve = folder / "reserve"

    @classmethod
    def of(cls, app_id: str) -> "Record | None":
        """Returns the record of a job, or None if there is none."""
        record = cls(host_directory() / app_id)
        return record if (record.folder / "job.json").exists() else None

    @classmethod
    def all(cls) -> list["Record"]:
        """Returns every record on this host, the newest first."""
        found = []
        for file in host_directory().glob("*/job.json"):
            with suppress(FileNotFoundError):  # removed meanwhile
                found.append((file.stat().st_mtime, file.parent))
        return [cls(folder) for _, folder in sorted(found, reverse=True)]

    def create(self, job: Job) -> TextIO:
        """Creates the directory and returns its lock, which it holds.

        Raises:
            SchedulerError: The directory cannot be created or written.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700)
            lock = (self.folder / "lock").open("w")
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._reserve.write_text(" " * RESERVED_BYTES)
            self._write("job.json", asdict(job))
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise no_record(self.folder, error) from error
        return lock

    def job(self) -> Job:
        """Reads the job as it was submitted."""
        file = self.folder / "job.json"
        try:
            content = json.loads(file.read_text())
            waits_for = [Predecessor(**one) for one in content.pop("predecessors", ())]
            replicas = [Replica(**replica) for replica in content.pop("replicas")]
            return Job(**content, replicas=replicas, predecessors=waits_for)
        except (ValueError, TypeError, KeyError) as error:
            raise damaged_record(file) from error

    def write(self, progress: Progress) -> None:
        """Replaces the state of the job; readers see the old one or the new one."""
        self._write("progress.json", asdict(progress))

    def write_on_full_disk(self, progress: Progress) -> None:
        """`write` for a full disk: uses reserved space, and may leave blanks after the state."""
        with self._reserve.open("r+") as file:
            file.write(json.dumps(asdict(progress)))
        self._reserve.replace(self.folder / "progress.json")

    def progress(self) -> Progress:
        """Reads the state of the job; a job whose supervisor died has failed."""
        supervised = self.supervised()  # first: the final state is written before the lock is released
        file = self.folder / "progress.json"
        progress = Progress()
        if file.exists():
            try:
                content = json.loads(file.read_text())
                progress = Progress(**content | {"processes": [Process(**process) for process in content["processes"]]})
                STATES.index(progress.state)
            except (ValueError, TypeError, KeyError) as error:
                raise damaged_record(file) from error
        if supervised or progress.state in ENDED:
            return progress
        return replace(progress, state="FAILED", message=self._cause_of_death(progress.supervisor))

    def outcome(self) -> str:
        """Returns the last line that the job wrote about itself (trainer/core/outcome.py), or nothing."""
        return self.outcome_file.read_text(errors="replace").strip() if self.outcome_file.exists() else ""

    def training(self) -> TrainingProgress | None:
        """Returns how far the training of the last attempt is; None if it has not said."""
        return read_progress(self.training_file)

    def how_far(self) -> str:
        """Returns how far the job is in a few words, by its log if it has not said; empty if nothing is known."""
        found = self.training()
        return found.short() if found else step_of(tail(Path(self.job().replicas[0].combined)))

    def supervisor_error(self) -> str:
        """Returns the last line of the supervisor's own errors, or nothing."""
        lines = self.supervisor_log.read_text().splitlines()
        return lines[-1].strip() if lines else ""

    def supervised(self) -> bool:
        """Returns whether the supervisor of the job lives."""
        with (self.folder / "lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def cancel(self) -> None:
        """Requests that the supervisor end the job, without waiting; kills processes left by a dead supervisor."""
        self.cancel_file.touch()
        supervisor = self.progress().supervisor
        if not self.supervised():
            self.kill_processes()
        elif supervisor:
            os.kill(supervisor, signal.SIGTERM)

    def wait_for_end(self, seconds: float) -> None:
        """Waits a limited time until the job has ended."""
        deadline = time.monotonic() + seconds
        with suppress(FileNotFoundError):  # removed meanwhile
            while self.supervised() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)

    def delete(self) -> None:
        """Removes the record. The job is cancelled first if it runs, and its supervisor then removes the record."""
        self.delete_file.touch()
        self.cancel()
        if not self.supervised():
            self.remove()

    def remove(self) -> None:
        """Removes the directory, for readers atomically; another process may do so at the same time."""
        (self.folder / "job.json").unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill_processes(self) -> None:
        """Kills all processes of the job in all sessions; only they have its outcome file in their environment."""
        kill_all_with(OUTCOME_VARIABLE, str(self.outcome_file))

    def _cause_of_death(self, supervisor: int) -> str:
        if not supervisor:
            return "the job was never started: torchx was killed while it submitted it"
        left = ", ".join(str(process.pid) for process in processes_with(OUTCOME_VARIABLE, str(self.outcome_file)))
        there = f"; it left process {left}, which `torchx delete` kills" if left else ""
        cause = f"died: {error}" if (error := self.supervisor_error()) else "was killed or lost its machine"
        return f"the supervisor of the job (process {supervisor}) {cause}{there}"

    def _write(self, name: str, content: dict[str, Any]) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(json.dumps(content, indent=2))
        part.replace(self.folder / name)


def host_directory() -> Path:
    """Returns the directory of this host's records: hosts may share a home directory, but not processes."""
    return state_directory("local") / socket.gethostname()


def look(app_id: str) -> tuple[str | None, str]:
    """Returns the state of a job, None if it has no record, and how far it is."""
    with suppress(FileNotFoundError):  # removed meanwhile
        if record := Record.of(app_id):
            return record.progress().state, record.how_far()
    return None, ""


def prune() -> None:
    """Removes the records of ended jobs that are too old or too many."""
    oldest = time.time() - DAYS_KEPT * 24 * 3600
    for position, record in enumerate(Record.all()):
        with suppress(FileNotFoundError):  # removed meanwhile
            expired = position >= JOBS_KEPT or (record.folder / "job.json").stat().st_mtime < oldest
            if expired and not record.supervised():
                record.remove()
