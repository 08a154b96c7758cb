"""Requests to profile a job that runs: a file in its run directory, that rank 0 looks for.

A signal was weighed: pods of a JobSet can be sent none, Slurm sends one to every node, and all that reach every rank
request a stop.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.config.report import ProfileConfig
from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.section import validate

FILE = "profile.request"
POLL_SECONDS = 5.0  # one small request to storage each, beside training


class ProfileRequests:
    """Requests to profile this job, noticed by a thread of rank 0.

    Args:
        run: The run directory.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._pending: ProfileConfig | None = None
        self._closed = threading.Event()

    @property
    def pending(self) -> bool:
        """Whether there is a request; on rank 0."""
        return self._pending is not None

    def take(self) -> ProfileConfig:
        """Returns the request, which is then no longer pending."""
        taken, self._pending = self._pending, None
        assert taken is not None
        return taken

    def watch(self) -> None:
        """Looks for the file until `close`, and removes it when it is read."""
        while not self._closed.wait(POLL_SECONDS):
            try:
                if text := self._run.read(FILE):
                    self._run.fs.rm_file(self._run.path(FILE))
                    self._pending = validate(ProfileConfig, json.loads(text), lambda _: "")
            except OSError:  # storage that is away for a while
                continue
            except (InputError, json.JSONDecodeError) as error:
                print(f"{FILE} cannot be used: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends watching."""
        self._closed.set()


@contextmanager
def profile_requests(run: RunDirectory, context: DistributedContext) -> Iterator[ProfileRequests]:
    """Looks for requests on rank 0, as long as the block runs."""
    requests = ProfileRequests(run)
    if context.is_rank0:
        threading.Thread(target=requests.watch, name="profile requests", daemon=True).start()
    try:
        yield requests
    finally:
        requests.close()
