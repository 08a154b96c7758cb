"""How far a job is: a file that rank 0 writes for its scheduler, and the console's lines where no file is shared.

A scheduler names the file in `PROGRESS_VARIABLE` and deletes it before each attempt. `PROGRESS` writes it in a job;
`read_progress` and `of_log` find it again. This file imports only the standard library, as outcome.py does.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from trainer.core.outcome import PROGRESS_VARIABLE

PROGRESS_FILE = "training.json"  # its name in the record of a job

WRITE_SECONDS = 10  # a sign of life between two reports is written if the last is older
# A job makes no progress if its last sign of life is older than this, and than so many times the usual interval.
STALLED_SECONDS, STALLED_INTERVALS = 60, 3

STEP = re.compile(r"\bstep [\d,]+/[\d,]+")
_LINE = re.compile(
    r"\bstep (?P<step>[\d,]+)/(?P<last>[\d,]+)  loss (?P<loss>\S+)  (?P<rate>[\d,]+) samples/s.*  ETA (?P<left>[\d:]+)$"
)
_SAVED = re.compile(r"\bstep ([\d,]+)  saved ")
_BEHIND = re.compile(
    r"(?:^|\] ?|: ?)(?P<segment>segment [^\s:]+): .*; (?P<behind>[^;]+ behind)"
    r"(?:, newest event (?P<age>[\d,]+) s ago)?$"
)
# What else rank 0 prints begins so, such as evaluations.
_SIGN = re.compile(r"(?:^|\] ?|: ?)(?:step [\d,]+(?:/| )|segment \S+: )")


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """How far a training job is. All times are in seconds, points in time since 1970.

    Attributes:
        step: Steps done.
        last_step: The step that training ends with; 0 of a job that takes no steps.
        loss: Mean loss of the last report; None without one, or if all its steps were skipped.
        samples_per_second: Of the last report.
        end: When the job is expected to end.
        doing: What it does in place of steps, such as an evaluation; empty if it takes steps.
        saved_step: Step of the newest checkpoint; 0 without one, None if it is not known.
        saved: When that was saved; None if it is not known.
        backlog: Where it is in data that keeps coming, such as `segment 07, 2 segments and 40 records behind`.
        newest_event: Time of the newest event in the data that it is done with; None if it is not known.
        interval: Usual time between two signs of life.
        run_directory: Where the run is, in full; empty if it is not known.
        time: The last sign of life.
    """

    step: int
    last_step: int
    loss: float | None = None
    samples_per_second: float | None = None
    end: float | None = None
    doing: str = ""
    saved_step: int | None = None
    saved: float | None = None
    backlog: str = ""
    newest_event: float | None = None
    interval: float = 0.0
    run_directory: str = ""
    time: float

    def line(self, details: str) -> str:
        """Returns the line of a report on the console, which `of_log` reads."""
        left = max(0, round((self.end or self.time) - self.time))
        return (
            f"{self._step()}  loss {shown(self.loss, '.5f')}  {shown(self.samples_per_second, ',.0f')} samples/s "
            f"{details}ETA {duration(left)}"
        )

    def stalled(self, now: float | None = None) -> bool:
        """Returns whether the job makes no progress."""
        return self._age(now) > max(STALLED_SECONDS, STALLED_INTERVALS * self.interval)

    def in_words(self, now: float | None = None) -> str:
        """Returns all of it, for `torchx status`."""
        rate, loss = self.samples_per_second, self.loss
        stalled = self.stalled(now)
        parts = [
            self.short(now) if stalled else self._step(),
            f"in {self.doing}" if self.doing else "",
            "" if stalled else self._backlog(now),
            f"{rate:,.0f} samples/s" if rate is not None and not stalled else "",
            f"loss {loss:.5f}" if loss is not None else "",
            f"ETA {duration(self._left(now))}" if self.end is not None and not stalled else "",
            self._saved_in_words(now),
        ]
        return ", ".join(filter(None, parts))

    def short(self, now: float | None = None) -> str:
        """Returns the step and the time left, or since when there is no progress, for `torchx list`."""
        since = f"no progress since {clock(self.time, now)} ({ago(self._age(now))})" if self.stalled(now) else ""
        left = f"ETA {duration(self._left(now))}" if self.end is not None and not since else ""
        return ", ".join(filter(None, (self._step(), since, left, self._backlog(now))))

    def fields(self, now: float | None = None) -> dict[str, Any]:
        """Returns all of it as plain data, with whether the job makes no progress."""
        return asdict(self) | {"stalled": self.stalled(now)}

    def _step(self) -> str:
        return f"step {self.step:,}/{self.last_step:,}" if self.last_step else ""

    def _backlog(self, now: float | None) -> str:
        known = self.backlog and self.newest_event is not None
        return self.backlog + (f", newest event {ago(_now(now) - (self.newest_event or 0.0))} ago" if known else "")

    def _saved_in_words(self, now: float | None) -> str:
        if not self.saved_step:
            return "" if self.saved_step is None else "nothing saved"
        age = f" ({ago(_now(now) - self.saved)} ago)" if self.saved is not None else ""
        return f"saved step {self.saved_step:,}{age}"

    def _age(self, now: float | None) -> float:
        return _now(now) - self.time

    def _left(self, now: float | None) -> float:
        return max(0.0, (self.end or 0.0) - _now(now))


class ProgressFile:
    """Writes the progress of this job; does nothing before `begin`, nor where no scheduler has named a file.

    Only rank 0 calls `begin`, so that all ranks may call the other methods.
    """

    def __init__(self) -> None:
        self._now: TrainingProgress | None = None
        self._behind: dict[str, Any] = {}  # noted before training begins, and kept from one segment to the next
        self._written = 0.0
        self._lock = Lock()  # checkpoints are saved by another thread
        self._log: Callable[[str], None] = print

    def begin(self, begun: TrainingProgress, log: Callable[[str], None]) -> None:
        """Notes that training begins; `log` prints a line."""
        if not os.environ.get(PROGRESS_VARIABLE):
            return  # every step would make a record for nobody
        self._log = log
        self._now = replace(begun, **self._behind)
        self._change(at_once=True)

    def step(self, step: int) -> None:
        """Notes that a step is done."""
        self._change(step=step, doing="")

    def doing(self, doing: str) -> None:
        """Notes progress in something else than steps; a phrase such as `the evaluation on test`."""
        self._change(doing=doing)

    def behind(self, backlog: str, newest_event: float | None) -> None:
        """Notes how far the job is behind data that keeps coming; as in `TrainingProgress`."""
        self._behind = {"backlog": backlog, "newest_event": newest_event}
        self._change(at_once=True, **self._behind)

    def report(self, reported: TrainingProgress) -> None:
        """Notes a report of the console."""
        names = ("step", "loss", "samples_per_second", "end", "interval", "time")
        self._change(at_once=True, **{name: getattr(reported, name) for name in names})

    def saved(self, step: int) -> None:
        """Notes that a checkpoint is committed, which another thread may do while the ranks are stuck."""
        self._change(at_once=True, time=None, saved_step=step, saved=time.time())

    def _change(self, at_once: bool = False, **changed: Any) -> None:
        with self._lock:
            if self._now is None:
                return
            seen = changed.pop("time", time.time())
            self._now = replace(self._now, **changed, time=seen or self._now.time)
            if at_once or time.monotonic() - self._written > WRITE_SECONDS:
                self._write()

    def _write(self) -> None:
        file = os.environ.get(PROGRESS_VARIABLE)
        if not file or self._now is None:
            return
        self._written = time.monotonic()
        whole = Path(f"{file}.new")  # only rank 0 writes it
        try:
            whole.write_text(json.dumps(asdict(self._now)))
            whole.replace(file)
        except OSError as error:
            self._log(f"{file} cannot be written to: {error}; torchx shows earlier progress of this job until it can")


PROGRESS = ProgressFile()


def read_progress(file: Path) -> TrainingProgress | None:
    """Reads the progress of a job; None if it has written none, as jobs of earlier versions and other programs."""
    try:
        return TrainingProgress(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def of_log(lines: Iterable[tuple[float, str]]) -> TrainingProgress | None:
    """Finds the progress of a job in the end of its log.

    Args:
        lines: The time of each line, in seconds since 1970, and its text.
    """
    found: TrainingProgress | None = None
    saved_step, saved, seen = None, None, 0.0
    behind: dict[str, Any] = {}
    for at, line in lines:
        line = line.rstrip()
        seen = at if _SIGN.search(line) else seen
        if match := _SAVED.search(line):
            saved_step, saved = _number(match[1]), at
        if match := _BEHIND.search(line):
            newest = None if match["age"] is None else at - _number(match["age"])
            behind = {"backlog": f"{match['segment']}, {match['behind']}", "newest_event": newest}
            found = found or TrainingProgress(step=0, last_step=0, time=at)
        if match := _LINE.search(line):
            found = TrainingProgress(
                step=_number(match["step"]),
                last_step=_number(match["last"]),
                loss=None if match["loss"] == "-" else float(match["loss"].replace(",", "")),
                samples_per_second=_number(match["rate"]),
                end=at + _seconds(match["left"]),
                interval=at - found.time if found and found.step else 0.0,
                time=at,
            )
    return replace(found, saved_step=saved_step, saved=saved, time=seen, **behind) if found else None


def backlog_line(segment: str, what: str, behind: str, newest_event: float | None) -> str:
    """Returns the console's line on a segment and how far the job is behind, which `of_log` reads.

    Args:
        segment: Its name.
        what: What there is to say about it.
        behind: What comes after it, in words that end with `behind`.
        newest_event: Time of the newest event that the job is done with; None if it is not known.
    """
    age = "" if newest_event is None else f", newest event {max(0.0, time.time() - newest_event):,.0f} s ago"
    return f"segment {segment}: {what}; {behind}{age}"


def step_of(log: str) -> str:
    """Returns a job's progress by its log, such as `step 400/2,000`; empty if the log shows none."""
    steps = STEP.findall(log)
    return steps[-1] if steps else ""


def saved_line(step: int) -> str:
    """Returns the beginning of the console's line on a checkpoint, which `of_log` reads."""
    return f"step {step:,}  saved"


def duration(seconds: float) -> str:
    """Returns a duration as tqdm shows it: 01:30, or 1:00:30."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def ago(seconds: float) -> str:
    """Returns an age in its largest whole unit."""
    seconds = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def clock(at: float, now: float | None = None) -> str:
    """Returns a point in time on this machine's clock, with the date if it is another day's."""
    then = datetime.fromtimestamp(at)
    same_day = then.date() == datetime.fromtimestamp(_now(now)).date()
    return then.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M")


def _now(now: float | None) -> float:
    return time.time() if now is None else now


def shown(mean: float | None, form: str) -> str:
    """Returns a mean for the console, which is missing if every step was skipped."""
    return "-" if mean is None else format(mean, form)


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _seconds(text: str) -> int:
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return total
