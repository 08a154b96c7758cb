"""What a run directory says to a tracker: its curves, its configuration, its checkpoint. Free of torch."""

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.section import flat

CURVES = "train"
MOST_BYTES = 2**20
Sent = dict[str, int]
"""The last step that was sent, of `train` and of each evaluated split."""


@dataclass(frozen=True)
class Point:
    """The numbers of a line of metrics.jsonl or evaluations.jsonl.

    Attributes:
        group: `train`, or the split.
        step: The step.
        seconds: Time of the report, or of the last report before an evaluation; seconds since the epoch.
        values: The numbers by name: `train/loss`, `rate/dense`, `validation/auc`.
    """

    group: str
    step: int
    seconds: float
    values: Mapping[str, float]


class Records:
    """Reads the files of a run, which grow while it trains.

    Args:
        directory: The run directory.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._read = 0  # bytes of metrics.jsonl
        # Of all reports, as an evaluation has no time of its own. In two arrays, because a long run has millions.
        self._steps, self._seconds = array("q"), array("d")

    def points(self, sent: Sent) -> Iterator[Point]:
        """Yields what was not sent yet, the curves first.

        A line of metrics.jsonl is yielded only once, and at most a megabyte of them, so that a tracker that was away
        for days costs no memory.
        """
        for line in self._new_lines():
            record = json.loads(line)
            self._steps.append(record["step"])
            self._seconds.append(record["time"])
            if record["step"] > sent.get(CURVES, -1):
                yield Point(CURVES, record["step"], record["time"], _numbers(CURVES, record))
        for record in self._directory.records("evaluations.jsonl"):
            split, step = record["split"], record["step"]
            if step > sent.get(split, -1):
                yield Point(split, step, self._time_of(step), _numbers(split, record))

    def _new_lines(self) -> Iterator[bytes]:
        fs, path = self._directory.fs, self._directory.path("metrics.jsonl")
        if not fs.is_local:  # objects are replaced whole
            content = (self._directory.read_bytes("metrics.jsonl") or b"")[self._read :][:MOST_BYTES]
        else:
            try:
                with open(path, "rb") as file:
                    file.seek(self._read)
                    content = file.read(MOST_BYTES)
            except FileNotFoundError:
                return
        for line in content[: content.rfind(b"\n") + 1].splitlines(keepends=True):
            self._read += len(line)
            yield line

    def _time_of(self, step: int) -> float:
        place = bisect_right(self._steps, step) - 1
        return self._seconds[place] if place >= 0 else self.started

    @property
    def facts(self) -> dict[str, Any]:
        """The content of run.json."""
        return self._directory.facts()

    @property
    def started(self) -> float:
        """When the run began, in seconds since the epoch; 0 if it is not recorded."""
        times = (start["time"] for start in self.facts.get("starts", []) if start.get("time"))
        return next((datetime.fromisoformat(time).timestamp() for time in times), 0.0)

    @property
    def name(self) -> str:
        """The last part of the run directory's URL."""
        return self._directory.url.rpartition("/")[2] or self._directory.url

    @property
    def local_folder(self) -> str | None:
        """The path of the run directory on this host; None in an object store."""
        return self._directory.path() if self._directory.fs.is_local else None

    def configuration(self) -> dict[str, str]:
        """Returns the configuration by key, without the secrets of URLs."""
        keys = flat(self._directory.read_toml("config.toml") or {})
        return {".".join(path): without_secrets(value) for path, value in keys.items()}

    def references(self) -> dict[str, str]:
        """Returns the URLs of the run directory and of its newest checkpoint, without secrets."""
        checkpoints, found = Checkpoints(self._directory), {"run_directory": self._directory.url}
        if steps := checkpoints.steps():
            found["checkpoint"] = checkpoints.url(steps[-1])
        return {name: without_secrets(url) for name, url in found.items()}


def _numbers(group: str, record: Mapping[str, Any]) -> dict[str, float]:
    return {
        name if name.startswith("rate/") else f"{group}/{name}": value
        for name, value in record.items()
        if name not in ("step", "split", "time") and isinstance(value, int | float)
    }
