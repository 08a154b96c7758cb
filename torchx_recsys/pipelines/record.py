"""The record of a pipeline or a sweep: a file for each submission of a job, on any fsspec storage."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named
from trainer.run.lock import RunLock


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One submission of a step.

    It is written before the step is submitted, so that the job is found again if its submitter is killed. A submission
    without an identity was never submitted: its submitter was killed while writing it.

    Attributes:
        step: The step.
        number: 1 for its first submission.
        inputs: A hash of the inputs of the step; equal inputs have equal hashes.
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
        """The name of its file."""
        return f"{self.step}-{self.number}.json"


class Record:
    """The submissions of one pipeline or sweep: `OUT/FOLDER/STEP-NUMBER.json`.

    Args:
        out: Its directory.
        folder: The folder in it for these files.
        command: The command of `torchx` that submits, for messages.

    Raises:
        InputError: There is no such storage.
    """

    def __init__(self, out: str, folder: str, command: str) -> None:
        self._directory = RunDirectory(out, "out")
        self._folder = folder
        self._command = command

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Locks the record: other commands wait to submit its jobs while the block runs.

        A submission without a handle then belongs to a killed submitter.

        Raises:
            InputError: Another command submits for too long, or the directory cannot be written.
        """
        lock = RunLock(RunDirectory(self._directory.url_of(self._folder), "out"))
        lock.take()
        try:
            yield
        finally:
            lock.release()

    def newest(self, names: Collection[str]) -> dict[str, Submission]:
        """Returns the newest submission of each of these jobs, without jobs that were never submitted.

        Raises:
            InputError: The directory cannot be read.
        """
        with named("out", self._directory.url):
            files = self._directory.fs.find(self._directory.path(self._folder))
            newest: dict[str, int] = {}
            for file in files:
                step, dash, number = file.rpartition("/")[2].removesuffix(".json").rpartition("-")
                if dash and number.isdecimal() and step in names:
                    newest[step] = max(int(number), newest.get(step, 0))
            return {step: self._read(step, number) for step, number in newest.items()}

    def begin(self, submission: Submission) -> Submission:
        """Notes that a step is about to be submitted; returns the note, with the time.

        Raises:
            InputError: Somebody else submits it at the same time, or the directory cannot be written.
        """
        noted = replace(submission, submitted_at=datetime.now(UTC).isoformat(timespec="seconds"))
        with named("out", self._directory.url):
            self._directory.fs.makedirs(self._directory.path(self._folder))
            try:
                path = self._directory.path(self._folder, noted.file)
                with self._directory.fs.open(path, "xb") as file:
                    file.write(_bytes(asdict(noted)))
                self._directory.fs.sync(path)
            except FileExistsError as error:
                raise InputError(
                    f"{self._directory.url}: another `torchx {self._command} run` submits {noted.step}; wait for it,"
                    f" and look with `torchx {self._command} status`"
                ) from error
        return noted

    def update(self, submission: Submission, *, handle: str = "", ended_as: str = "") -> Submission:
        """Notes the handle or the end of a submission; returns it with them.

        Raises:
            InputError: The directory cannot be written.
        """
        changed = replace(submission, handle=handle or submission.handle, ended_as=ended_as or submission.ended_as)
        with named("out", self._directory.url):
            self._directory.fs.write(self._directory.path(self._folder, changed.file), _bytes(asdict(changed)))
        return changed

    def retract(self, submission: Submission) -> None:
        """Removes the note of a submission that was refused, after which there is no job.

        Raises:
            InputError: The directory cannot be written.
        """
        with named("out", self._directory.url):
            self._directory.fs.rm_file(self._directory.path(self._folder, submission.file))

    def _read(self, step: str, number: int) -> Submission:
        unwritten = Submission(step=step, number=number)
        if not self._directory.read_bytes(self._folder, unwritten.file):
            return unwritten  # its submitter was killed while creating the file, before submitting anything
        try:
            return Submission(**self._directory.read_json(self._folder, unwritten.file) or {})
        except TypeError as error:
            raise self._directory.damaged(self._folder, unwritten.file, why=error) from error


def _bytes(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
