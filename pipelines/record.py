"""The record of a pipeline: a file for each submission of a step, on any fsspec storage."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named

FOLDER = "pipeline"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One submission of a step.

    It is written before the step is submitted, so that a job is found again whose submitter was killed. One without an
    identity was never submitted: its submitter was killed while it wrote it.

    Attributes:
        step: The step.
        number: 1 for its first submission.
        inputs: A short name for what the step was made of: equal inputs have equal names.
        component: The component.
        words: The component's arguments.
        scheduler: The scheduler.
        identity: The scheduler's name for the job before it was submitted.
        after: The handles of the jobs that it waits for.
        submitted_at: The time.
        handle: The job; empty until it is submitted.
        ended_as: The final state of the job, once somebody has seen it: schedulers forget jobs.
    """

    step: str
    number: int
    inputs: str = ""
    component: str = ""
    words: list[str] = field(default_factory=list)
    scheduler: str = ""
    identity: str = ""
    after: list[str] = field(default_factory=list)
    submitted_at: str = ""
    handle: str = ""
    ended_as: str = ""

    @property
    def file(self) -> str:
        """Its file, below the pipeline's directory."""
        return f"{FOLDER}/{self.step}-{self.number}.json"


class Record:
    """The submissions of one pipeline.

    Args:
        out: The pipeline's directory.

    Raises:
        InputError: There is no such storage.
    """

    def __init__(self, out: str) -> None:
        self._directory = RunDirectory(out, "out")

    def newest(self) -> dict[str, Submission]:
        """Returns the newest submission of each step.

        Raises:
            InputError: The directory cannot be read.
        """
        with named("out", self._directory.url):
            files = self._directory.fs.find(self._directory.path(FOLDER))
            newest: dict[str, int] = {}
            for file in files:
                step, dash, number = file.rpartition("/")[2].removesuffix(".json").rpartition("-")
                if dash and number.isdecimal():
                    newest[step] = max(int(number), newest.get(step, 0))
            return {step: self._read(f"{FOLDER}/{step}-{number}.json") for step, number in newest.items()}

    def begin(self, submission: Submission) -> Submission:
        """Notes that a step is about to be submitted; returns the note, with the time.

        Raises:
            InputError: Somebody else submits it at the same time, or the directory cannot be written.
        """
        noted = replace(submission, submitted_at=datetime.now(UTC).isoformat(timespec="seconds"))
        with named("out", self._directory.url):
            self._directory.fs.makedirs(self._directory.path(FOLDER))
            try:
                with self._directory.fs.open(self._directory.path(noted.file), "xb") as file:
                    file.write(_bytes(asdict(noted)))
            except FileExistsError as error:
                raise InputError(
                    f"{self._directory.url}: another `torchx pipeline run` submits step {noted.step}; "
                    "wait for it, and look with `torchx pipeline status`"
                ) from error
        return noted

    def update(self, submission: Submission, *, handle: str = "", ended_as: str = "") -> Submission:
        """Notes the handle or the end of a submission; returns it with them.

        Raises:
            InputError: The directory cannot be written.
        """
        changed = replace(submission, handle=handle or submission.handle, ended_as=ended_as or submission.ended_as)
        with named("out", self._directory.url):
            self._directory.fs.write(self._directory.path(changed.file), _bytes(asdict(changed)))
        return changed

    def _read(self, name: str) -> Submission:
        try:
            return Submission(**json.loads(self._directory.read(name) or ""))
        except ValueError:  # the submitter was killed while it made the file, before it submitted anything
            step, _, number = name.removeprefix(f"{FOLDER}/").removesuffix(".json").rpartition("-")
            return Submission(step=step, number=int(number))


def _bytes(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
