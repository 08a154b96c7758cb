"""The lock of a run directory: one job at a time writes to it.

`RUN_DIR/lock.json` names that job, which renews it every few seconds. Another job takes the lock over if its holder is
dead: the same TorchX job (it was restarted), a process of this machine that has ended, or one that does not renew the
lock. Clocks of two machines are never compared: the other job watches the lock for a change.
"""

import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.core.errors import DamagedError, InputError, StorageError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named

if TYPE_CHECKING:
    from trainer.core.distributed import DistributedContext

# Why not filelock: object stores have no flock, on network file systems it may hold for a single host only, and its
# SoftFileLock stays when a holder on another host dies.
FILE = "lock.json"
RENEW_SECONDS = 10.0
STALE_SECONDS = 3 * RENEW_SECONDS  # a renewal may fail, and the next be late
SETTLE_SECONDS = 0.5  # if two jobs take over a lock together, the last to write holds it; each looks again after this
POLL_SECONDS = 1.0

HOLDER = ("token", "job", "host", "pids", "pid", "started")
Holder = dict[str, Any]


class LockLost(StorageError):
    """Another job took over the run directory."""


class RunLock:
    """The right to write to a run directory, once `take` has returned.

    Args:
        run: The run directory.
        job: Name of the TorchX job that takes the lock; None outside TorchX.
        file: Name of the lock's file.
        waits: Whether to wait for a living holder, after a line reports it.
    """

    def __init__(self, run: RunDirectory, job: str | None = None, file: str = FILE, waits: bool = False) -> None:
        self._run = run
        self._job = job
        self._file, self._waits, self._is_told = file, waits, False
        self._token = uuid.uuid4().hex
        self._released = threading.Event()

    def take(self) -> None:
        """Takes the lock and renews it until `release`; ends the process if another job takes it over.

        Raises:
            InputError: Another job holds it.
        """
        with named(self._run.key, self._run.url):
            self._run.fs.makedirs(self._run.path())
            while True:
                holder = self._read()
                if holder is None:
                    if self._create():  # as one of those that have waited for the lock to be given back
                        break
                elif self._is_dead(holder):
                    self._replace()
                    break
        threading.Thread(target=self._renew, name="lock", daemon=True).start()

    def check(self) -> None:
        """Verifies that the lock is still held.

        Raises:
            LockLost: It is not.
        """
        holder = self._read()
        if self._is_lost(holder):
            raise LockLost(f"{self._run.url} was taken over by {_name(holder)}")

    def release(self) -> None:
        """Gives the lock back."""
        self._released.set()
        with suppress(OSError):  # without renewals it expires
            if not self._is_lost(self._read()):
                self._run.fs.rm_file(self._run.path(self._file))

    def _create(self) -> bool:
        try:
            with self._run.fs.open(self._run.path(self._file), "xb") as file:
                file.write(json.dumps(self._describe()).encode())
        except FileExistsError:
            return self._is_mine(self._read())  # a library's retry finds the file that its first attempt created
        return True

    def _is_dead(self, holder: Holder) -> bool:
        """Returns whether a holder is dead, which can take a while to see; False if it gives the lock back.

        Raises:
            InputError: It is alive, and this lock does not wait.
        """
        if holder and (_has_ended(holder) or (self._job and self._job == holder["job"])):
            return True
        if not self._is_told:
            waiting = "for it to end" if self._waits else "to see whether it is alive"
            print(f"{without_secrets(self._run.url)} is locked by {_name(holder)}; waiting {waiting}", flush=True)
        self._is_told = True
        deadline = time.monotonic() + STALE_SECONDS
        while (now := self._read()) == holder:
            if time.monotonic() > deadline:
                return True
            time.sleep(POLL_SECONDS)
        if now and now["token"] == holder.get("token") and not self._waits:
            raise InputError(
                f"{self._run.key} is '{self._run.url}', which {_name(now)} is writing to; wait for it, stop it or "
                f"choose another {self._run.key} (the lock of a dead job expires after {STALE_SECONDS:.0f} s)"
            )
        return False

    def _replace(self) -> None:
        self._run.write_json(self._file, self._describe())
        time.sleep(SETTLE_SECONDS)
        try:
            self.check()
        except LockLost as error:
            raise InputError(
                f"{self._run.key} is '{self._run.url}': {error}; choose another {self._run.key}"
            ) from error

    def _renew(self) -> None:
        # A lost lock ends the process by os._exit, because sys.exit would end only this thread. Storage that fails may
        # come back: the lock is not lost yet, and every commit checks it.
        while not self._released.wait(RENEW_SECONDS):
            try:
                self.check()
                self._run.write_json(self._file, self._describe())
            except LockLost as error:
                print(without_secrets(f"error: {error}; this job ends"), file=sys.stderr, flush=True)
                os._exit(1)
            except OSError as error:  # storage that is away for a while
                url = without_secrets(self._run.url)
                print(f"the lock of {url} cannot be renewed: {error}", file=sys.stderr, flush=True)

    def _is_lost(self, holder: Holder | None) -> bool:
        # A damaged lock is nobody else's: another job that takes over writes its name.
        return holder != {} and not self._is_mine(holder)

    def _is_mine(self, holder: Holder | None) -> bool:
        return bool(holder) and holder["token"] == self._token

    def _read(self) -> Holder | None:
        """Returns the holder, None if there is no lock; empty while it is written, or if its writer was killed in that.

        So it is of a damaged lock, too.
        """
        try:
            holder = self._run.read_json(self._file)
        except DamagedError:
            return {}
        return holder if holder is None or {*HOLDER} <= holder.keys() else {}

    def _describe(self) -> dict[str, Any]:
        return {
            "token": self._token,
            "job": self._job,
            "host": socket.gethostname(),
            "pids": _pids(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "renewed": time.time(),
        }


@contextmanager
def locked(run: RunDirectory, context: "DistributedContext") -> Iterator[RunLock]:
    """Holds the lock of a run directory, on rank 0 for all ranks, as long as the block runs.

    Raises:
        InputError: Another job holds it.
    """
    # Commands that submit jobs take locks too, and do not wait for torch to be imported.
    from trainer.core.distributed import broadcast_from_rank0, torchx_job

    lock = RunLock(run, torchx_job())
    broadcast_from_rank0(context, lock.take)
    try:
        yield lock
    finally:
        if context.is_rank0:
            lock.release()


def _has_ended(holder: Holder) -> bool:
    """Whether the process of a holder is known to have ended, as it was one of this machine."""
    here = (holder["host"], holder["pids"]) == (socket.gethostname(), _pids())
    return here and _started(holder["pid"]) != holder["started"]


def _pids() -> str:
    """Returns the name of the PID namespace: two containers can share a host name, but not their process ids."""
    return os.readlink("/proc/self/ns/pid") if Path("/proc/self/ns/pid").exists() else ""


def _started(pid: int) -> str | None:
    """Returns the start of a process in ticks since boot, None if there is no such process.

    Tells a new process apart from a dead one that had the same id.
    """
    # psutil's create_time() adds the boot time by the wall clock: after the clock was set, a live holder of the lock
    # would seem to be another process, and two jobs would write to one run.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _name(holder: Holder | None) -> str:
    if holder is None:
        return "nobody"
    if not holder:
        return "a process that has not said its name"
    job = f"job {holder['job']}, " if holder["job"] else ""
    return f"{job}process {holder['pid']} on {holder['host']}"
