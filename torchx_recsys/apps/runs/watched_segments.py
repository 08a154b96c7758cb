"""Collects the facts about a run over segments, from its directory, its data and its exports."""

import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from torchx_recsys.apps.check_data.shift import measure_shift
from torchx_recsys.apps.export.directory import MANIFEST, current_or_none
from torchx_recsys.apps.export.publishing import REFUSED
from torchx_recsys.apps.runs.topic_lag import TopicLag
from trainer.config.data import DataConfig
from trainer.core.run_directory import RunDirectory, pass_over
from trainer.core.storage import named
from trainer.data.segments import data_of_segment, look_at_segment

SHIFTS = "segments-shift.jsonl"
MEASURED_AT_ONCE = 30  # maximum number of segments, the newest, whose data a command reads
DATE = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)(?:[-_T]?(\d\d))?")
HOUR = 3600
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Publication:
    """An export, or a refusal.

    Attributes:
        time: The time, in seconds since 1970.
        step: The step of its checkpoint.
        segment: The last segment that it was trained on.
        refused: The rule that did not hold, with its figures; empty for an export.
        is_current: Whether it is the export that current.json names.
    """

    time: float
    step: int
    segment: str
    refused: str = ""
    is_current: bool = False

    @property
    def what(self) -> str:
        """The result in words."""
        return f"refused by {self.refused}" if self.refused else "current" if self.is_current else "exported"


@dataclass(frozen=True)
class Watched:
    """The facts about a run over segments.

    Attributes:
        name: The name of the run.
        lines: Its segments, as in segments.jsonl.
        shifts: `label_rates` and `indices` of a segment's data, by its name.
        new_ids: The ids that got a row of a table with managed ids in each segment, by table and segment.
        done: The time at which training on a segment ended, in seconds since 1970.
        publications: Exports and refusals, in the order of time.
        static: The metrics on each segment of a model that is no longer trained.
        static_step: The step of that model.
        topic: How far it is behind the topic that its segments are cut from.
    """

    name: str
    lines: Sequence[Line]
    shifts: Mapping[str, Mapping[str, Mapping[str, float]]]
    new_ids: Mapping[str, Mapping[str, float]]
    done: Mapping[str, float]
    publications: Sequence[Publication]
    static: Mapping[str, Mapping[str, float]]
    static_step: int | None
    topic: TopicLag | None = None

    @property
    def names(self) -> list[str]:
        """The names of the segments."""
        return [line["segment"] for line in self.lines]

    def hours_behind(self) -> dict[str, dict[str, float]]:
        """Returns the hours from the end of each segment until it was `trained` on and `published`, where known."""
        ends = {name: end for name in self.names if (end := end_of(name)) is not None}
        return {
            what: {name: (times[name] - end) / HOUR for name, end in ends.items() if name in times}
            for what, times in self._times().items()
        }

    def seconds_behind(self) -> dict[str, dict[str, float]]:
        """Returns the seconds from the newest event of each segment of a topic until it was cut, trained, published."""
        return self.topic.seconds_behind(self._times()) if self.topic else {}

    def _times(self) -> dict[str, Mapping[str, float]]:
        """Returns when each segment was `trained` on and `published`, in seconds since 1970."""
        exports = [one for one in self.publications if not one.refused]
        published = {
            line["segment"]: next(one.time for one in exports if one.step >= line["step"])
            for line in self.lines
            if any(one.step >= line["step"] for one in exports)
        }
        return {"trained": self.done, "published": published}


def shifts_of(run: RunDirectory, data: DataConfig, names: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns the shifts of the segments; reads samples of the newest ones that have not been read yet.

    Raises:
        InputError: A segment cannot be read.
    """
    lines = {line["segment"]: line for line in run.read_records(SHIFTS)}
    for place in range(max(0, len(names) - MEASURED_AT_ONCE), len(names)):
        pair = names[max(0, place - 1) : place + 1]
        if pair[-1] in lines or not all(look_at_segment(data, name).files for name in pair):
            continue
        parts = [data_of_segment(data, name, "test").test for name in pair]
        shift = measure_shift("data.segments.path", parts, data)
        lines[pair[-1]] = {"segment": pair[-1], "label_rates": shift.label_rates, "indices": shift.indices}
        run.write(SHIFTS, "".join(f"{json.dumps(line)}\n" for line in lines.values()))
    return lines


def publications_of(to: str, lines: Sequence[Line]) -> list[Publication]:
    """Returns the exports and refusals of a directory of exports.

    Raises:
        InputError: The directory cannot be read.
    """
    target, found = RunDirectory(to, "--to"), []
    with named("--to", to):
        current = current_or_none(target)
        for path in target.fs.glob(target.path("step-*", MANIFEST)):
            folder, time = posixpath.basename(posixpath.dirname(path)), target.fs.modified(path).timestamp()
            step = int(folder.removeprefix("step-"))
            found.append(Publication(time, step, _segment_of(step, lines), is_current=folder == current))
        for note in target.read_records(REFUSED):
            try:
                time = datetime.fromisoformat(note["time"]).timestamp()
            except ValueError as error:
                pass_over(target.damaged(REFUSED, why=error))
                continue
            found.append(Publication(time, note["step"], note["segment"], f"{note['rule']}: {note['figures']}"))
    return sorted(found, key=lambda one: one.time)


def _segment_of(step: int, lines: Sequence[Line]) -> str:
    """Returns the segment that a step belongs to; empty if the run is not there yet."""
    return next((line["segment"] for line in lines if step <= line["step"]), "")


def new_ids_of(metrics: Sequence[Line], lines: Sequence[Line]) -> dict[str, dict[str, float]]:
    """Returns the ids that got a row in each segment, by table and segment, from the lines of metrics.jsonl."""
    at_end = {line["step"]: line for line in metrics}
    found: dict[str, dict[str, float]] = {}
    before: dict[str, float] = {}
    for line in lines:
        end = at_end.get(line["step"], {})
        for key in [key for key in end if key.startswith("ids/") and key.endswith("/used")]:
            table = key.removeprefix("ids/").removesuffix("/used")
            given = end[key] + end.get(f"ids/{table}/evicted", 0.0)  # rows since the start of the run
            found.setdefault(table, {})[line["segment"]] = given - before.get(table, 0.0)
            before[table] = given
    return found


def done_of(metrics: Sequence[Line], lines: Sequence[Line]) -> dict[str, float]:
    """Returns when each segment had been trained on, in seconds since 1970, from the lines of metrics.jsonl."""
    times = {line["step"]: line["time"] for line in metrics if "time" in line}
    return {line["segment"]: times[line["step"]] for line in lines if line["step"] in times}


def end_of(segment: str) -> float | None:
    """Returns when a segment ended, in seconds since 1970; None unless its name is a day or an hour, in UTC."""
    if not (match := DATE.fullmatch(segment)):
        return None
    year, month, day, hour = match.groups()
    try:
        start = datetime(int(year), int(month), int(day), int(hour or 0), tzinfo=UTC)
    except ValueError:  # 2026-13-40
        return None
    return (start + (timedelta(days=1) if hour is None else timedelta(hours=1))).timestamp()
