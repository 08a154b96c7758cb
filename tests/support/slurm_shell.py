"""A shell of the user of a Slurm cluster."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

from command import run_torchx
from slurm_cluster import Cluster


class Shell:
    """A shell of a cluster's user, in an empty directory."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        own = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200", "USER": cluster.user}
        self.env = os.environ | cluster.env | own

    def torchx(self, *args: str, code: int = 0, cwd: Path | None = None) -> str:
        """Runs torchx and returns its stdout."""
        done = self.try_torchx(*args, cwd=cwd)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def try_torchx(self, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return run_torchx(*args, cwd=cwd or self.folder, user=self.cluster.user, **self.env)

    def run(self, *command: str) -> str:
        """Runs a command of Slurm as the user, and returns what it printed."""
        as_user = {"user": self.cluster.user, "group": self.cluster.user, "extra_groups": []}
        done = subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True, **as_user)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *args: str, cfg: str = "") -> str:
        """Submits a component and returns the handle."""
        return self.torchx("run", "-s", "slurm", *(["-cfg", cfg] if cfg else []), *args).strip()

    def shell_job(self, command: str, *args: str, cfg: str = "") -> str:
        """Submits a job of lines of bash."""
        memory = () if "--memMB" in args else ("--memMB", "100")
        return self.submit("utils.sh", *memory, *args, "--", "exec", "bash", "-c", command, cfg=cfg)

    def status(self, handle: str, cwd: Path | None = None) -> dict:
        return json.loads(self.torchx("status", "--json", handle, cwd=cwd))

    def wait(self, handle: str, *states: str, seconds: float = 600) -> dict:
        """Waits until a job is in one of the states, by default the final ones."""
        deadline = time.monotonic() + seconds
        while (status := self.status(handle))["state"] not in (states or ("SUCCEEDED", "FAILED", "CANCELLED")):
            assert time.monotonic() < deadline, f"{status}\n{self.batch_log(handle)}"
            self._wait_for_news(handle)
        return status

    def _wait_for_news(self, handle: str) -> None:
        """Waits until Slurm says something else of a job, or a while: `torchx status` takes a processor second."""
        where = ["-M", cluster] if (cluster := app_id(handle).partition("@")[2]) else []
        query, until = ("squeue", *where, "-h", "-j", number(handle), "-o", "%T %r %N"), time.monotonic() + 5
        seen = self.cluster.run(*query, check=False)
        while time.monotonic() < until and self.cluster.run(*query, check=False) == seen:
            time.sleep(0.5)

    def listed(self) -> dict[str, str]:
        """The output of `torchx list`: state by handle."""
        return dict(re.findall(r"^(slurm://\S+) +\S+ +([A-Z]+)\b", self.torchx("list", "-s", "slurm"), re.MULTILINE))

    def job_dir(self, handle: str) -> Path:
        entry = self.folder / "state/torchx-recsys/slurm" / self.cluster.name / app_id(handle)
        return Path(entry.read_text().strip())

    def batch_log(self, handle: str) -> str:
        file = self.job_dir(handle) / f"slurm-{number(handle)}.log"
        return file.read_text() if file.exists() else ""


def app_id(handle: str) -> str:
    return handle.rpartition("/")[2]


def number(handle: str) -> str:
    return app_id(handle).rpartition(":")[2].partition("@")[0]
