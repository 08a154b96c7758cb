"""A run directory on any fsspec URL, with its small files.

A small file can be damaged: a power cut leaves NULs, a bad disk flips a bit. If the run can do without the file, a line
reports it and the run goes on; otherwise the error names the file in one line.
"""

import json
import os
import posixpath
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from io import BytesIO
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

from fsspec.implementations.local import LocalFileSystem

from trainer.core.errors import DamagedError, StorageUnsupportedError
from trainer.core.secrets import has_secrets, without_secrets
from trainer.core.storage import Storage, named, open_storage, os_errors

LOCAL = Storage(LocalFileSystem())
STEP = re.compile(rb'{"step": (\d+)[,}]')
FACTS = "run.json"
FIELDS: Mapping[str, Mapping[str, type]] = {
    "evaluations.jsonl": {"step": int, "split": str},
    "metrics.jsonl": {"step": int, "loss": object},
    "refused.jsonl": {"step": int, **dict.fromkeys(("time", "segment", "rule", "figures"), str)},
    "segments-shift.jsonl": {"segment": str, "label_rates": dict, "indices": dict},
    "segments.jsonl": {
        **dict.fromkeys(("step", "number", "first_step", "samples", "files"), int),
        **dict.fromkeys(("segment", "fingerprint"), str),
        "before": object,
    },
}
"""What each line of a file has; a line without it is damaged."""


class RunDirectory:
    """The directory of a run.

    Args:
        url: Any fsspec URL or local path. Created with the first file.
        key: The flag or key that gave the URL.

    Raises:
        InputError: There is no such storage.
    """

    def __init__(self, url: str, key: str = "--out") -> None:
        self.url = os.path.expanduser(url.rstrip("/"))  # TensorBoard, unlike fsspec, would make a directory named ~
        self.key = key
        with named(key, url):
            if "::" in url:  # chained URLs cannot work: readers and writers of checkpoints append names to a URL
                raise StorageUnsupportedError("a chain of URLs cannot hold it")
            self.fs, self._path = open_storage(self.url)

    def path(self, *names: str) -> str:
        """Returns a path below the directory, in the form of the file system."""
        return posixpath.join(self._path, *names)

    def url_of(self, *names: str) -> str:
        """Returns a URL below the directory."""
        return posixpath.join(self.url, *names)

    def create(self) -> None:
        """Creates the directory.

        Raises:
            InputError: The directory cannot be written.
        """
        with named(self.key, self.url):
            self.fs.makedirs(self._path)
            # An object store has no directories, so only writing a file shows that the URL is writable.
            self.fs.write(self.path(FACTS), self.read_bytes(FACTS) or b"{}")

    def read_bytes(self, *names: str) -> bytes | None:
        """Returns the content of a file, None if there is no such file."""
        try:
            return self.fs.cat_file(self.path(*names))
        except FileNotFoundError:
            return None

    def read(self, *names: str) -> str | None:
        """Returns the text of a file, None if there is no such file.

        Raises:
            DamagedError: It is not UTF-8.
        """
        content = self.read_bytes(*names)
        return None if content is None else self._parsed(bytes.decode, content, *names)

    def read_json(self, *names: str) -> dict[str, Any] | None:
        """Returns the content of a JSON file, None if there is no such file.

        Raises:
            DamagedError: It is not JSON.
        """
        text = self.read(*names)
        return None if text is None else self._parsed(_json_object, text, *names)

    def read_toml(self, *names: str) -> dict[str, Any] | None:
        """Returns the content of a TOML file, None if there is no such file.

        Raises:
            DamagedError: It is not TOML.
        """
        text = self.read(*names)
        return None if text is None else self._parsed(tomllib.loads, text, *names)

    def facts(self) -> dict[str, Any]:
        """Returns the content of run.json, which each start writes anew; empty if there is none or it is damaged."""
        try:
            return self.read_json(FACTS) or {}
        except DamagedError as error:
            pass_over(error)
            return {}

    def _parsed(self, parse: Callable[[Any], Any], content: Any, *names: str) -> Any:
        try:
            return parse(content)
        except ValueError as error:
            raise self.damaged(*names, why=error) from error

    def damaged(self, *names: str, why: object) -> DamagedError:
        """Returns the error for a damaged file."""
        return DamagedError(f"'{without_secrets(self.url_of(*names))}' is damaged: {why}")

    def read_records(self, name: str) -> list[dict[str, Any]]:
        """Returns what `records` yields."""
        return [*self.records(name)]

    def records(self, name: str) -> Iterator[dict[str, Any]]:
        """Yields the objects of a JSON Lines file, except for a last line that is being written."""
        with self._opened(name) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    continue
                if (record := _record(line, FIELDS.get(name, {}))) is not None:
                    yield record
                else:
                    pass_over(self.damaged(name, why=f"line {number:,} is not as it was written"))

    def write_records(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Writes a whole JSON Lines file, durable."""
        with NamedTemporaryFile("w") as copy:
            copy.writelines(f"{json.dumps(record)}\n" for record in records)
            copy.flush()
            self.fs.upload(copy.name, self.path(name))

    def download(self, name: str, path: str) -> None:
        """Copies a file, if it exists, to a file on this host."""
        fresh = f"{path}.new"  # as gcsfs deletes a file whose source does not exist
        with suppress(FileNotFoundError):
            self.fs.get_file(self.path(name), fresh)
            os.replace(fresh, path)

    def write(self, name: str, text: str) -> None:
        """Writes a file whole: a reader finds the old or the new text, even after a power cut.

        A configuration with a password in a URL, which it needs to be run again, is for its owner alone.
        """
        self.fs.write(self.path(name), text.encode(), private=name.endswith(".toml") and has_secrets(text))

    def write_json(self, name: str, content: Any) -> None:
        """Writes an indented JSON file."""
        self.write(name, json.dumps(content, indent=2) + "\n")

    def _opened(self, name: str) -> BinaryIO:
        """Opens the current content of a file, empty if there is no such file."""
        if self.fs.is_local:
            try:
                return self.fs.open(self.path(name), "rb")
            except FileNotFoundError:
                return BytesIO()
        # Whole: ranges of an object cannot be read once the run has replaced the object.
        with NamedTemporaryFile() as copy:
            self.download(name, copy.name)
            return open(copy.name, "rb")


class JsonLines:
    """A JSON Lines file in a run directory; each line has a `step`.

    Lines are kept on disk and not in memory, because a long run has millions. For storage that cannot append, they are
    on this host's disk, and `flush` uploads the whole file.

    Args:
        run: The run directory.
        name: The file name.
        last_step: Lines of later steps are dropped, as a resumed run rewrites them.
    """

    def __init__(self, run: RunDirectory, name: str, last_step: int) -> None:
        self._run, self._name = run, name
        # It is deleted with this object.
        self._copy = None if run.fs.is_local else NamedTemporaryFile(suffix=f"-{name}")  # noqa: SIM115
        self._path = self._copy.name if self._copy else run.path(name)
        if self._copy:
            run.download(name, self._path)
        self._pending: list[str] = []  # lines that could not be written to the file yet
        self._size, self._is_stored = 0, True
        self._fields = FIELDS.get(name, {})
        self._keep(lambda line: self._is_up_to(line, last_step))
        self.flush()

    def add(self, record: dict[str, Any]) -> None:
        """Adds one line."""
        self._pending.append(json.dumps(record) + "\n")
        if len(self._pending) == 1:  # else the last write failed, and `flush` tries again
            self._append()

    def discard(self, **values: Any) -> None:
        """Removes the lines with these values."""

        def is_kept(line: str | bytes) -> bool:
            return not values.items() <= (_record(line, self._fields) or {}).items()

        self._pending = [*filter(is_kept, self._pending)]
        self._keep(is_kept)

    def records(self) -> list[dict[str, Any]]:
        """Returns the lines of the file, without damaged lines."""
        with open(self._path, "rb") if os.path.exists(self._path) else BytesIO() as file:
            return [record for line in file if (record := _record(line, self._fields)) is not None]

    def flush(self) -> None:
        """Writes the pending lines."""
        if self._pending:
            self._append()
        if not self._is_stored:
            if self._copy:
                self._run.fs.upload(self._path, self._run.path(self._name))
            else:
                LOCAL.sync(self._path)
        self._is_stored = True

    def _append(self) -> None:
        text = "".join(self._pending).encode()
        with os_errors(self._path), open(self._path, "ab") as file:
            if file.tell() > self._size:
                file.truncate(self._size)  # a failed write may have left a part of a line
            file.write(text)
            file.flush()
            self._size = file.tell()
        self._pending, self._is_stored = [], False

    def _keep(self, is_kept: Callable[[bytes], bool]) -> None:
        """Drops the other lines, and a partial last line, which a crash leaves."""
        if not os.path.exists(self._path):
            return
        read = kept = 0
        after: list[bytes] = []  # kept lines after one that is dropped; few, as lines are in the order of steps
        with os_errors(self._path), open(self._path, "rb") as file:
            for line in file:
                if line.endswith(b"\n") and is_kept(line):
                    if kept == read:
                        kept += len(line)
                    else:
                        after.append(line)
                read += len(line)
            file.seek(0)
            content = file.read(kept) + b"".join(after) if after else b""
        if after:
            LOCAL.write(self._path, content)
        elif kept < read:
            os.truncate(self._path, kept)
        self._size, self._is_stored = kept + sum(map(len, after)), self._is_stored and kept == read

    def _is_up_to(self, line: bytes, last_step: int) -> bool:
        """Returns whether the step of a line is at most the last step; a damaged line has no step."""
        # All lines begin with the step. Parsing ten million lines as JSON would take half a minute.
        if match := STEP.match(line):
            return int(match[1]) <= last_step
        if record := _record(line, {"step": int}):
            return record["step"] <= last_step
        pass_over(self._run.damaged(self._name, why="a line is not as it was written"))
        return False


@cache
def _say_once(line: str) -> None:
    print(f"{line}; it is passed over", flush=True)


def pass_over(damage: DamagedError) -> None:
    """Reports, once, that a damaged file or line is ignored."""
    _say_once(str(damage))


def _json_object(text: str) -> dict[str, Any]:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}")
    return content


def _record(line: str | bytes, fields: Mapping[str, type]) -> dict[str, Any] | None:
    """Returns the object in a line; None if it is damaged."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_whole = isinstance(record, dict) and all(
        key in record and isinstance(record[key], kind) for key, kind in fields.items()
    )
    return record if is_whole else None
