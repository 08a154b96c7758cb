"""Sends a run to a tracker: what its files say and the tracker does not have yet, each line once.

The files are the queue. A tracker that is slow, hung, full or gone delays nobody but this process, and the rest is sent
by the next attempt, by the run that is resumed, or by `python -m trainer track`.
"""

import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Protocol

from trainer.config.train import ReportConfig, TrackerConfig
from trainer.core.errors import InputError, first_line
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.extensions.trackers.of_mlflow import MlflowRun
from trainer.extensions.trackers.of_trackio import TrackioRun
from trainer.extensions.trackers.of_wandb import WandbRun
from trainer.extensions.trackers.records import Point, Records, Sent
from trainer.run.lock import RunLock

LAST_SECONDS = 10.0  # to send the rest once a run has ended
PAUSE_SECONDS = 5.0  # before another attempt


class RemoteRun(Protocol):
    """A run in a tracker. Its constructor takes the options, a key, what was sent, and the records of the run.

    Attributes:
        sent: What the tracker has.
    """

    sent: Sent

    def send(self, points: list[Point]) -> None:
        """Sends points; `sent` has those that arrived, even if a later one raises an error."""
        ...

    def refer(self, references: Mapping[str, str]) -> None:
        """Sends URLs by name."""
        ...

    def close(self, state: str) -> None:
        """Sends how the run has ended, `finished` or `stopped`; another state is not known."""
        ...


KINDS: dict[str, Callable[[TrackerConfig, str, Sent, Records], RemoteRun]] = {
    "mlflow": MlflowRun,
    "trackio": TrackioRun,
    "wandb": WandbRun,
}
"""The trackers by name: the values of `report.trackers`."""


def check_trackers(report: ReportConfig) -> None:
    """Refuses trackers that are not installed, or whose server is not named.

    Raises:
        InputError: The message names the package or the key.
    """
    for name in report.trackers:
        # A mere directory of this name, as Weights & Biases makes them, is found without an origin.
        if getattr(find_spec(name), "origin", None) is None:
            raise InputError(
                f"report.trackers has '{name}', which needs the package {name}; pip install 'torchx-recsys[{name}]'"
            )
    if "mlflow" in report.trackers and report.mlflow.uri is None and "MLFLOW_TRACKING_URI" not in os.environ:
        raise InputError(
            "report.trackers has 'mlflow', but no server is named; set report.mlflow.uri, or "
            "MLFLOW_TRACKING_URI in the environment of the job"
        )


class Sender:
    """Sends a run to one tracker, and to the same run there after a resume.

    Args:
        name: The tracker.
        config: Where to.
        directory: The run directory.
        is_new: Whether the run has begun from scratch, and gets a run of its own in the tracker.
    """

    def __init__(self, name: str, config: TrackerConfig, directory: RunDirectory, is_new: bool = False) -> None:
        self._name, self._config, self._directory, self._is_new = name, config, directory, is_new
        self._records = Records(directory)
        self._remote: RemoteRun | None = None
        self._points: list[Point] = []

    def send(self, state: str | None = None, **references: str) -> None:
        """Sends what is new; raises whatever the tracker's client raises.

        Args:
            state: How the run has ended; None while it trains.
            references: More URLs by name.
        """
        remote = self._remote = self._remote or self._connected()
        # Points that could not be sent come before others are read.
        while points := [one for one in self._points if one.step > remote.sent.get(one.group, -1)] or [
            *self._records.points(remote.sent)
        ]:
            self._points = points
            remote.send(points)
            self._store({"key": self._key, "sent": remote.sent})
        if state is not None:
            urls = self._records.references() | references
            remote.refer({name: without_secrets(url) for name, url in urls.items()})
            remote.close(state)

    def _connected(self) -> RemoteRun:
        """Returns the run in the tracker. Its key is stored before it is used, so that it is found after any crash."""
        kept: dict[str, Any] | None = None if self._is_new else self._directory.read_json(self._file)
        if kept is None:
            kept = {"key": uuid.uuid4().hex, "sent": {}}
            self._store(kept)
        self._key, self._is_new = kept["key"], False
        return KINDS[self._name](self._config, self._key, kept["sent"], self._records)

    @property
    def _file(self) -> str:
        return f"tracker-{self._name}.json"

    def _store(self, kept: Mapping[str, object]) -> None:
        self._directory.write_json(self._file, kept)


class Following:
    """The process that follows a run: it sends whenever it is woken, until the run ends.

    Its stdin has an object that says what to send, then a line for each time to wake up, then `end STATE`. A run that
    was killed closes it without that line.

    Args:
        order: The object.
    """

    def __init__(self, order: Mapping[str, object]) -> None:
        self._name, self._directory = str(order["tracker"]), RunDirectory(str(order["run"]))
        config = TrackerConfig.model_validate(order["config"])
        self._sender = Sender(self._name, config, self._directory, bool(order["is_new"]))
        self._woken, self._ended = threading.Event(), threading.Event()
        self._state: str | None = None
        self._fails = False

    def run(self) -> int:
        """Sends until the run ends, and returns the exit code: 0 if the tracker has all."""
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._end_in_time, daemon=True).start()
        # Of a run that is resumed while the process of its earlier attempt still sends.
        lock = RunLock(self._directory, file=f"tracker-{self._name}.lock", waits=True)
        lock.take()
        is_last = False
        while not is_last:
            self._woken.wait()
            self._woken.clear()
            is_last = self._ended.is_set()
            self._attempt()
        lock.release()
        return int(self._fails)

    def _attempt(self) -> None:
        try:
            self._sender.send(self._state)
        except Exception as error:  # clients raise anything, and the run does not depend on them
            if not self._fails:
                self._say(f"takes nothing: {first_line(error)}; training goes on, and {self._later}")
            self._fails = True
            self._ended.wait(PAUSE_SECONDS)
        else:
            if self._fails:
                self._say("answers again, and has what was left")
            self._fails = False

    def _listen(self) -> None:
        self._woken.set()
        for line in sys.stdin:
            if line.startswith("end "):
                self._state = line.split()[1]
                break
            self._woken.set()
        self._ended.set()
        self._woken.set()

    def _end_in_time(self) -> None:
        self._ended.wait()
        time.sleep(LAST_SECONDS)
        if not self._fails:
            self._say(f"has not answered within {LAST_SECONDS:.0f} s of the end; {self._later}")
        os._exit(1)  # the client may hang for ever

    @property
    def _later(self) -> str:
        return f"python -m trainer track --out {self._directory.url} sends what is left"

    def _say(self, line: str) -> None:
        with suppress(OSError):  # the log may be gone
            print(without_secrets(f"{self._name} {line}"), flush=True)


def follow() -> None:
    """The program of the process."""
    logging.disable()  # a line of ours tells what clients tell in many
    os.nice(10)
    os._exit(Following(json.loads(sys.stdin.readline())).run())
