"""The directory of manifests: which segments of a topic are cut, and with which offsets the next begins."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from trainer.config.data import DataConfig
from trainer.config.files import NAME, SegmentsConfig
from trainer.core.errors import InputError, StorageError, StorageExistsError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import PARTIAL, named
from trainer.data.segments import KEY, names_of_segments
from trainer.data.stream.manifest import SUFFIX, Manifest
from trainer.run.lock import RunLock

DIGITS = 12
FORM = re.compile(rf"\d{{{DIGITS}}}")
LOCK = "cutter.lock"  # without the end of a manifest's name, as a reader would take it for a segment


def first_name() -> str:
    """Returns the name of a topic's first segment."""
    return "0" * DIGITS


def name_after(name: str) -> str:
    """Returns the name of the segment after another."""
    return f"{int(name) + 1:0{DIGITS}}"


class ManifestDirectory:
    """The directory of manifests.

    Args:
        data: The data section.

    Raises:
        InputError: The section does not name such a directory.
    """

    def __init__(self, data: DataConfig) -> None:
        self._topic, self._format = data.stream.topic, data.stream.format
        self._path = _checked_path(data)
        self.run = RunDirectory(self._path.removesuffix(f"{NAME}{SUFFIX}") or ".", KEY)
        self.lock = RunLock(self.run, os.environ.get("TORCHX_JOB_ID"), LOCK)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds its lock: one cutter at a time writes to it.

        Raises:
            InputError: Another cutter holds it, or the directory cannot be written.
        """
        self.lock.take()
        try:
            yield
        finally:
            self.lock.release()

    @property
    def url(self) -> str:
        """Its URL, which identifies it wherever the job runs."""
        return without_secrets(self.run.fs.url_of(self.run.path()))

    def newest(self) -> tuple[str, Manifest] | None:
        """Returns the name and the manifest of the newest segment; None without segments.

        Raises:
            InputError: A file there is no manifest, or of another topic, one is missing, or storage fails.
        """
        names = names_of_segments(SegmentsConfig(path=self._path))
        for name in names:
            if not FORM.fullmatch(name):
                raise self._refusal(
                    f"holds {name}{SUFFIX}, which is no manifest of a segment of a topic; move it away, or name "
                    "another directory"
                )
        for before, after in pairwise(names):
            if after != name_after(before):
                raise self._refusal(
                    f"holds {before}{SUFFIX} and {after}{SUFFIX}, but not {name_after(before)}{SUFFIX}; put it back"
                )
        if not names:
            return None
        newest = self._read(names[-1])
        if len(names) > 1:
            self._check_follows(names[-2:], self._read(names[-2]), newest)
        return names[-1], newest

    def write(self, name: str, manifest: Manifest) -> None:
        """Writes the manifest of a segment, which ends it.

        Raises:
            InputError: Another cutter has written it, or storage fails.
        """
        content = manifest.to_json().encode()
        with named(KEY, self.run.url):
            self.lock.check()
            try:
                self.run.fs.create(self.run.path(name + SUFFIX), content)
            except StorageExistsError as error:
                # A library's retry finds what its first attempt has written.
                if self.run.read_bytes(name + SUFFIX) != content:
                    raise StorageError(f"another cutter has written {name}{SUFFIX}") from error

    def remove_partial(self) -> None:
        """Removes what a killed cutter has left of a manifest."""
        with named(KEY, self.run.url):
            for path in self.run.fs.glob(self.run.path(f"*{SUFFIX}.*{PARTIAL}")):
                self.run.fs.rm_file(path)

    def _read(self, name: str) -> Manifest:
        with named(KEY, self.run.url):
            content = self.run.fs.cat_file(self.run.path(name + SUFFIX))
        try:
            found = Manifest.from_json(content)
        except ValueError as error:
            raise self._refusal(
                f"holds {name}{SUFFIX}, which cannot be read: {error}; put a copy of the file back"
            ) from error
        for key, ours, theirs in (("topic", self._topic, found.topic), ("format", self._format, found.format)):
            if ours != theirs:
                raise InputError(
                    f"data.stream.{key} is '{ours}', but {name}{SUFFIX} in {place(self.run.url)} is of '{theirs}'; "
                    f"write that, or name another directory in {KEY}"
                )
        return found

    def _check_follows(self, names: list[str], before: Manifest, after: Manifest) -> None:
        for number, part in before.partitions.items():
            found = after.partitions.get(number)
            if found is None or found.start != part.end:
                begins = "is not in" if found is None else f"begins with offset {found.start:,} in"
                raise self._refusal(
                    f"holds {names[0]}{SUFFIX}, which ends with offset {part.end:,} of partition {number}, but it "
                    f"{begins} {names[1]}{SUFFIX}: one of them is of another cutter; put the right one back"
                )

    def _refusal(self, why: str) -> InputError:
        return InputError(f"{KEY} is {place(self._path)}, whose directory {why}")


def _checked_path(data: DataConfig) -> str:
    """Returns the path of the manifests, with {segment} in it.

    Raises:
        InputError: It cannot be that, or data.reader is another.
    """
    if data.stream.topic is None:
        raise InputError("data.stream.topic is unset; name the topic to cut, and data.stream.brokers")
    if data.reader != "kafka":
        raise InputError(f"data.reader is '{data.reader}', which does not read segments of a topic; set it to 'kafka'")
    like = f"such as 'runs/live/stream/{NAME}{SUFFIX}'"
    path = data.segments.path
    if path is None:
        raise InputError(f"{KEY} is unset; name the directory of the manifests, {like}")
    folder, slash, file = path.rpartition("/")
    if file != f"{NAME}{SUFFIX}" or any(sign in folder for sign in "*?[") or (slash and not folder):
        raise InputError(
            f"{KEY} is '{without_secrets(path)}', but a segment of a topic is one file, in one directory: {like}"
        )
    return path
