"""What a job leaves on disk, and where it is found again: its directory, and the index in the user's home."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from schedulers.contract import state_directory

ABOUT = "torchx-job.json"
INDEX = "slurm"  # folder below the state directory, which batch.sh writes to as well


@dataclass(frozen=True)
class About:
    """What TorchX knows of a job and Slurm does not."""

    name: str
    role: str
    replicas: int

    def write(self, job_dir: Path) -> None:
        """Puts it into the job directory."""
        (job_dir / ABOUT).write_text(json.dumps(asdict(self), indent=2) + "\n")


@dataclass(frozen=True)
class Record:
    """One Slurm job of a job directory; plain `sbatch` makes further ones."""

    job_dir: Path
    job_id: str

    @property
    def about(self) -> About:
        """What was submitted."""
        return About(**json.loads((self.job_dir / ABOUT).read_text()))

    @property
    def batch_log(self) -> Path:
        """What the batch script, srun and Slurm itself said."""
        return self.job_dir / f"slurm-{self.job_id}.log"

    def replica_log(self, replica: int, stream: str) -> Path:
        """What a replica wrote; `stream` is out or err."""
        return self._folder / f"{self.about.role}-{replica}.{stream}"

    @property
    def state(self) -> str:
        """What the batch script noted last, such as `running on ...`; empty before the first attempt."""
        return self._read("state").strip()

    @property
    def attempts(self) -> int:
        """How often the job has been started."""
        return len(self._read("attempts").splitlines())

    @property
    def layout(self) -> tuple[str, list[int]]:
        """The nodes of the last attempt, and how many replicas each of them has; empty before the first one."""
        nodes, _, counts = self._read("layout").strip().partition(" ")
        found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
        return nodes, [int(count) for count, times in found for _ in range(int(times or 1))]

    @property
    def _folder(self) -> Path:
        return self.job_dir / f"slurm-{self.job_id}"

    def _read(self, name: str) -> str:
        file = self._folder / name
        return file.read_text() if file.exists() else ""


@dataclass(frozen=True)
class Index:
    """Which directory a job of a cluster has: a file for each job, which holds the path."""

    cluster: str

    @property
    def _folder(self) -> Path:
        return state_directory(INDEX) / self.cluster

    def add(self, job_id: str, job_dir: Path) -> None:
        """Remembers a job."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / job_id).write_text(f"{job_dir}\n")

    def find(self, job_id: str) -> Record | None:
        """The record of a job; None if it is unknown or its directory is gone."""
        file = self._folder / job_id
        if not job_id.isdecimal() or not file.exists():
            return None
        job_dir = Path(file.read_text().rstrip("\n"))
        return Record(job_dir, job_id) if (job_dir / ABOUT).exists() else None

    def records(self) -> list[Record]:
        """All jobs whose directories still exist, the newest first; forgets the others."""
        found = []
        for file in self._folder.iterdir() if self._folder.exists() else ():
            if record := self.find(file.name):
                found.append(record)
            else:
                file.unlink(missing_ok=True)
        return sorted(found, key=lambda record: -int(record.job_id))
