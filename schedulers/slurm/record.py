"""The record of a Slurm job: its directory, and the index in the user's home by which it is found."""

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from schedulers.predecessors import Predecessor
from schedulers.slurm.app_id import AppId
from schedulers.state_directory import damaged_record, state_directory
from trainer.core.progress import PROGRESS_FILE, TrainingProgress, read_progress

ABOUT = "torchx-job.json"
SCRIPT = "torchx-job.sh"
CANCELLED = "cancelled"
INDEX = "slurm"  # folder below the state directory, which batch.sh writes to as well


@dataclass(frozen=True)
class About:
    """Properties of a job that Slurm does not keep."""

    name: str
    role: str
    replicas: int
    predecessors: list[Predecessor] = field(default_factory=list)  # missing in records of earlier versions
    array: list[str] = field(default_factory=list)  # the roles of the tasks of a job array; missing too
    clusters: list[str] = field(default_factory=list)  # Slurm chooses one; empty: this machine's; missing too

    @classmethod
    def read(cls, job_dir: Path) -> "About":
        """Reads the properties from the job directory."""
        try:
            content = json.loads((job_dir / ABOUT).read_text())
            waits_for = [Predecessor(**one) for one in content.pop("predecessors", ())]
            return cls(**content, predecessors=waits_for)
        except (ValueError, TypeError, AttributeError) as error:
            raise damaged_record(job_dir / ABOUT) from error

    def write(self, job_dir: Path) -> None:
        """Writes the properties into the job directory."""
        (job_dir / ABOUT).write_text(json.dumps(asdict(self), indent=2) + "\n")


@dataclass(frozen=True)
class Record:
    """The files of one Slurm job in a job directory, in which plain `sbatch` makes further jobs.

    A task of an array is a job of its own.
    """

    job_dir: Path
    app_id: AppId

    @cached_property
    def about(self) -> About:
        """The job as it was submitted."""
        return About.read(self.job_dir)

    @property
    def role(self) -> str:
        """The role of the job, or of the task."""
        task = self.app_id.task
        return self.about.array[int(task)] if task else self.about.role

    @property
    def tasks(self) -> "list[Record]":
        """The tasks of an array; empty for any other job."""
        if self.app_id.task:
            return []
        return [Record(self.job_dir, self.app_id.with_task(task)) for task, _ in enumerate(self.about.array)]

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.job_dir / SCRIPT

    @property
    def batch_log(self) -> Path:
        """The output of the batch script, of srun and of Slurm itself."""
        return self.job_dir / f"slurm-{self.app_id.number}.log"

    def replica_log(self, replica: int, stream: str) -> Path:
        """Returns the log of a replica; `stream` is out or err."""
        return self._folder / f"{self.role}-{replica}.{stream}"

    @property
    def state(self) -> str:
        """The last state that the batch script wrote, such as `running on ...`; empty before the first attempt."""
        return self._read("state").strip()

    @property
    def cancelled(self) -> bool:
        """Whether `torchx cancel` was called for the job."""
        return (self._folder / CANCELLED).exists()

    def note_cancelled(self) -> None:
        """Notes that the job is about to be cancelled: a job that never started leaves no other trace."""
        with contextlib.suppress(OSError):  # Slurm has the last word
            for one in (self, *self.tasks):
                one._folder.mkdir(exist_ok=True)
                (one._folder / CANCELLED).touch()

    def note_not_cancelled(self) -> None:
        """Notes that Slurm did not cancel the job."""
        with contextlib.suppress(OSError):
            for one in (self, *self.tasks):
                (one._folder / CANCELLED).unlink(missing_ok=True)

    def training(self) -> TrainingProgress | None:
        """Returns how far the training of the last attempt is; None if it has not said."""
        return read_progress(self._folder / PROGRESS_FILE)

    @property
    def attempts(self) -> int:
        """The number of times that the job has been started."""
        return len(self._read("attempts").splitlines())

    def exit_codes(self) -> dict[int, int]:
        """Returns the exit codes of the replicas that have ended in the last attempt."""
        ended = self._folder / "ended"
        files = [*ended.iterdir()] if ended.exists() else []
        return {int(file.name): int(code) for file in files if (code := file.read_text().partition(" ")[0])}

    @property
    def layout(self) -> tuple[str, list[int]]:
        """The nodes of the last attempt, and the number of replicas on each; empty before the first one."""
        nodes, _, counts = self._read("layout").strip().partition(" ")
        found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
        return nodes, [int(count) for count, times in found for _ in range(int(times or 1))]

    @property
    def _folder(self) -> Path:
        return self.job_dir / f"slurm-{self.app_id.number}"

    def _read(self, name: str) -> str:
        file = self._folder / name
        return file.read_text() if file.exists() else ""


@dataclass(frozen=True)
class Index:
    """The directories of the jobs that were submitted on a cluster: one file for each job, which holds the path."""

    cluster: str

    @property
    def _folder(self) -> Path:
        return state_directory(INDEX) / self.cluster

    def add(self, app_id: AppId, job_dir: Path) -> None:
        """Adds a job."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / str(app_id)).write_text(f"{job_dir}\n")

    def remove(self, app_id: AppId) -> None:
        """Removes a job, whose directory stays."""
        (self._folder / str(app_id)).unlink(missing_ok=True)

    def find(self, app_id: AppId) -> Record | None:
        """Returns the record of a job; None if it is unknown, or its directory is gone or another user's."""
        whole = app_id.whole
        # A job that was not submitted from here has noted itself where it runs.
        noted_there = [state_directory(INDEX) / whole.cluster / whole.number] if whole.cluster else []
        files = [file for file in (self._folder / str(whole), *noted_there) if file.exists()]
        if not whole.number.isdecimal() or not files:
            return None
        job_dir = Path(files[0].read_text().rstrip("\n"))
        found = Record(job_dir, whole) if os.access(job_dir / ABOUT, os.R_OK) else None
        return next((one for one in found.tasks if one.app_id == app_id), None) if found and app_id.task else found

    def records(self) -> list[Record]:
        """Returns all jobs whose directories still exist, the newest first; removes the others from the index."""
        found = []
        for file in self._folder.iterdir() if self._folder.exists() else ():
            if record := self.find(AppId.parse(file.name)):
                found.append(record)
            else:
                file.unlink(missing_ok=True)
        return sorted(found, key=lambda record: -int(record.app_id.number))
