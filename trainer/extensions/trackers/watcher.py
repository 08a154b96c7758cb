"""Starts a process for each tracker of a run, and wakes it whenever the run's files have grown."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trainer.config.root import Config
from trainer.core.distributed import DistributedContext
from trainer.extensions.trackers.sending import LAST_SECONDS, check_trackers
from trainer.training.watchers import RunView, Watcher

ROOT = Path(__file__).parents[3]
# The project may be a copy in the working directory, which Python does not look into with -P.
PROGRAM = (
    "import sys; root = sys.argv[1]; sys.path[:0] = [root] * (root not in sys.path); "
    "from trainer.extensions.trackers.sending import follow; follow()"
)


def check(config: Config, context: DistributedContext) -> None:
    """Refuses trackers that are not installed, or whose server is not named.

    Raises:
        InputError: The message names the package or the key.
    """
    check_trackers(config.report)


class Trackers(Watcher):
    """Sends the run to trackers from processes of their own, on rank 0; the run waits for them only at its end."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] | None = None
        self._last_step = 0

    def begin(self, run: RunView, step: int, last_step: int) -> None:
        """Starts the processes, once."""
        self._last_step = last_step
        if run.context.is_rank0 and self._processes is None:
            self._processes = {name: _start(name, run, is_new=step == 0) for name in run.config.report.trackers}

    def after_step(self, run: RunView, step: int) -> None:
        """Wakes the processes after a report."""
        if step % run.config.report.interval_steps == 0 or step == self._last_step:
            self._tell("\n")

    def after_evaluation(self, run: RunView, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Wakes the processes."""
        self._tell("\n")

    def at_end(self, run: RunView, step: int, state: str) -> None:
        """Lets the processes send the rest, within seconds."""
        self._tell(f"end {state}\n")
        for process in (self._processes or {}).values():
            try:
                process.wait(LAST_SECONDS + 5)
            except subprocess.TimeoutExpired:  # it ends itself, unless it is stopped or the machine hangs
                process.kill()

    def _tell(self, line: str) -> None:
        """Writes a line to all processes, without waiting: whoever has not read the lines before is awake anyway."""
        for process in (self._processes or {}).values():
            assert process.stdin
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(process.stdin.fileno(), line.encode())


def _start(name: str, run: RunView, is_new: bool) -> subprocess.Popen[bytes]:
    order = {
        "tracker": name,
        "run": run.directory.url,
        "config": getattr(run.config.report, name).model_dump(),
        "is_new": is_new,
    }
    # Signals for the ranks would end it before it has sent what they leave, hence the session; it ends with its stdin.
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, str(ROOT)], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin
    process.stdin.write(json.dumps(order).encode() + b"\n")
    process.stdin.flush()
    os.set_blocking(process.stdin.fileno(), False)
    return process
