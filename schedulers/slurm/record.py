"""The record of a Slurm job: its directory, and the index in the user's home by which it is found."""

import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from schedulers.first_error import tail
from schedulers.predecessors import Predecessor
from schedulers.slurm.app_id import AppId
from schedulers.slurm.transport import HERE, Transport
from schedulers.state_directory import damaged_record
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
    code: str = ""  # the digest of code that was sent to a host, in whose jobs alone it is

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
        (job_dir / ABOUT).write_text(self.text)

    @property
    def text(self) -> str:
        """The properties as they are written."""
        content = asdict(self)
        if not self.code:  # earlier versions read the records of jobs of their own machine
            del content["code"]
        return json.dumps(content, indent=2) + "\n"


@dataclass(frozen=True)
class Record:
    """The files of one Slurm job in a job directory, in which plain `sbatch` makes further jobs.

    A task of an array is a job of its own.
    """

    job_dir: Path
    app_id: AppId
    at: Transport = HERE

    @cached_property
    def about(self) -> About:
        """The job as it was submitted, with its handles as they are on this machine."""
        about = About.read(self.at.here(self.job_dir))
        return replace(about, predecessors=[self._seen_from_here(one) for one in about.predecessors])

    def _seen_from_here(self, one: Predecessor) -> Predecessor:
        handle, slash, app_id = one.handle.rpartition("/")
        seen = replace(AppId.parse(app_id), host=self.app_id.host)
        return replace(one, handle=f"{handle}{slash}{seen}") if self.app_id.host else one

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
        return [Record(self.job_dir, self.app_id.with_task(task), self.at) for task, _ in enumerate(self.about.array)]

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

    def tail(self, replica: int, stream: str) -> str:
        """Returns the end of a replica's log; empty if there is none yet."""
        log = self.replica_log(replica, stream)
        self.at.pull(log)
        return tail(self.at.here(log))

    @property
    def files(self) -> list[Path]:
        """What the job has written, but for the logs of its replicas."""
        return [file for one in (self, *self.tasks) for file in (one._folder, one.batch_log)]

    @property
    def state(self) -> str:
        """The last state that the batch script wrote, such as `running on ...`; empty before the first attempt."""
        return self._read("state").strip()

    @property
    def cancelled(self) -> bool:
        """Whether `torchx cancel` was called for the job."""
        return self.at.here(self._folder / CANCELLED).exists()

    def note_cancelled(self) -> None:
        """Notes that the job is about to be cancelled: a job that never started leaves no other trace."""
        self.at.touch(one._folder / CANCELLED for one in (self, *self.tasks))  # Slurm has the last word

    def note_not_cancelled(self) -> None:
        """Notes that Slurm did not cancel the job."""
        for one in (self, *self.tasks):
            self.at.remove(one._folder / CANCELLED)

    def training(self) -> TrainingProgress | None:
        """Returns how far the training of the last attempt is; None if it has not said."""
        return read_progress(self.at.here(self._folder / PROGRESS_FILE))

    @property
    def attempts(self) -> int:
        """The number of times that the job has been started."""
        return len(self._read("attempts").splitlines())

    def exit_codes(self) -> dict[int, int]:
        """Returns the exit codes of the replicas that have ended in the last attempt."""
        ended = self.at.here(self._folder / "ended")
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
        file = self.at.here(self._folder / name)
        return file.read_text() if file.exists() else ""


def record_of(script: Path, app_id: AppId, at: Transport) -> Record | None:
    """Returns the record beside a batch script; None if the script is not ours, or is another user's."""
    if script.name != SCRIPT or not all(at.is_readable(file) for file in (script, script.parent / ABOUT)):
        return None
    at.pull(script.parent / ABOUT)
    return Record(script.parent, app_id, at)


@dataclass(frozen=True)
class Index:
    """The directories of the jobs that were submitted on a cluster: one file for each job, which holds the path."""

    cluster: str
    at: Transport = HERE
    # What does not change is asked of a host once, as each question takes a while.
    _found_there: dict[AppId, Record] = field(default_factory=dict, compare=False)

    @property
    def _folder(self) -> Path:
        return self.at.state_directory(INDEX) / self.cluster

    def add(self, app_id: AppId, job_dir: Path) -> None:
        """Adds a job."""
        self.at.write(self._folder / app_id.there, f"{job_dir}\n")

    def remove(self, app_id: AppId) -> None:
        """Removes a job, whose directory stays."""
        self.at.remove(self._folder / app_id.there)

    def find(self, app_id: AppId) -> Record | None:
        """Returns the record of a job; None if it is unknown, or its directory is gone or another user's."""
        whole = app_id.whole
        record = self._found_there.get(whole) or self._record(whole)
        if record and self.at.host:
            self._found_there[whole] = record
        return next((one for one in record.tasks if one.app_id == app_id), None) if record and app_id.task else record

    def _record(self, whole: AppId) -> Record | None:
        # A job that was not submitted from here has noted itself where it runs.
        noted_there = [self.at.state_directory(INDEX) / whole.cluster / whole.number] if whole.cluster else []
        entries = [self._folder / whole.there, *noted_there]
        self.at.pull(*entries)
        job_dir = next((found for entry in entries if (found := self._job_dir(entry))), None)
        if not whole.number.isdecimal() or not job_dir:
            return None
        self.at.pull(job_dir / ABOUT)
        return self._readable(job_dir, whole)

    def records(self) -> list[Record]:
        """Returns all jobs whose directories still exist, the newest first; removes the others from the index."""
        self.at.pull(self._folder)
        folder = self.at.here(self._folder)
        ids = [AppId.parse(file.name) for file in folder.iterdir()] if folder.exists() else []
        jobs = {app_id: self._job_dir(self._folder / app_id.there) for app_id in ids if app_id.number.isdecimal()}
        self.at.pull(*(job_dir / ABOUT for job_dir in jobs.values() if job_dir))
        found = []
        for app_id, job_dir in jobs.items():
            if job_dir and (record := self._readable(job_dir, replace(app_id, host=self.at.host))):
                found.append(record)
            else:
                self.remove(app_id)
        return sorted(found, key=lambda record: -int(record.app_id.number))

    def _job_dir(self, entry: Path) -> Path | None:
        file = self.at.here(entry)
        return Path(file.read_text().rstrip("\n")) if file.exists() else None

    def _readable(self, job_dir: Path, app_id: AppId) -> Record | None:
        is_readable = os.access(self.at.here(job_dir / ABOUT), os.R_OK)
        return Record(job_dir, app_id, self.at) if is_readable else None
