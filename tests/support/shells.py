"""Shells in which `torchx` runs, and the local jobs that they see."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from command import run_torchx

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
RUN = ("run", "-s", "local_cwd")
SH = ("utils.sh", "--", "exec", "sh", "-c")  # utils.sh has a shell around its arguments


class Shells:
    """Any number of shells of one user on one host; `state` is the user's state directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.state = home / "state"
        self.environment = os.environ | {"HOME": str(home), "XDG_STATE_HOME": str(self.state), "COLUMNS": "200"}
        self.opened: list[subprocess.Popen[str]] = []

    def __call__(self, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Types `torchx WORDS` in a shell of its own, in a directory of its own."""
        folder = self.home / "elsewhere"
        folder.mkdir(exist_ok=True)
        return run_torchx(*map(str, words), cwd=folder, **self.environment | environment)

    def open(self, *words: object, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Types `torchx WORDS` in a shell, which is the leader of its session, and does not wait."""
        shell = subprocess.Popen(
            ["bash", "-c", '"$@"; exit $?', "bash", "torchx", *map(str, words)],
            cwd=cwd or self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # a shell that `nohup` did not start
        )
        self.opened.append(shell)
        return shell

    def detached(self, *words: object, cfg: str = "", cwd: Path | None = None) -> str:
        """Submits a job that outlives its shell; returns its handle."""
        shell = self.open("run", "-s", "local_cwd", "-cfg", f"detach=True{cfg}", *words, cwd=cwd)
        out, said = shell.communicate(timeout=600)
        assert shell.returncode == 0, said
        return out.strip()

    def status(self, handle: str) -> dict:
        """The output of `torchx status --json`."""
        done = self("status", "--json", handle)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def wait_for_end(self, handle: str) -> dict:
        """Waits until a job has ended and returns its status."""
        wait_for(lambda: self.progress(handle)["state"] in ENDED)
        return self.status(handle)

    def progress(self, handle: str) -> dict:
        """The state of a job in its record, if it has begun: `torchx status` takes a processor second each time."""
        file = self.record(handle) / "progress.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def close(self) -> None:
        """Ends the jobs and the shells that are left."""
        for line in self("list", "-s", "local_cwd").stdout.splitlines():
            if line.startswith("local_cwd://") and not line.endswith(ENDED):
                self("delete", line.split()[0])
        for shell in self.opened:
            shell.kill()
            shell.communicate()

    def record(self, handle: str) -> Path:
        """The directory that a job leaves in the state directory."""
        (found,) = self.state.glob(f"torchx-recsys/local/*/{handle.rpartition('/')[2]}")
        return found

    def supervisor(self, handle: str) -> int:
        """The number of the process that looks after a job."""
        return self.progress(handle)["supervisor"]


def waiting(go: Path, text: str = "waiting", end: str = ":") -> str:
    """Returns a script that writes its process id, prints a line, waits until a file is there, and ends.

    TorchX makes one dollar of two.
    """
    return f"echo $$$$ > {go}.new; mv {go}.new {go}.pid; echo {text}; until [ -e {go} ]; do sleep 0.05; done; {end}"


def handle_of(shell: subprocess.Popen[str]) -> str:
    """Returns the handle, which is the first that a shell prints."""
    assert shell.stdout is not None
    return shell.stdout.readline().strip()


def wait_for(condition: Callable[[], object], seconds: float = 600) -> None:
    """Waits until something is so, asleep for most of the time: to ask may take a process, and with it a processor."""
    deadline = time.monotonic() + seconds
    asked = time.monotonic()
    while not condition():
        assert asked < deadline
        time.sleep(max(0.05, 3 * (time.monotonic() - asked)))
        asked = time.monotonic()


def runs(pid: int) -> bool:
    """Returns whether a process is there and is not a zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
