"""A run directory on any fsspec URL, with its small files."""

import json
import os
import posixpath
from typing import Any

from trainer.core.storage import named, open_storage


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
            self.write("run.json", self.read("run.json") or "{}")

    def read(self, *names: str) -> str | None:
        """Returns the text of a file, None if there is no such file."""
        try:
            return self.fs.cat_file(self.path(*names)).decode()
        except FileNotFoundError:
            return None

    def read_json(self, *names: str) -> dict[str, Any] | None:
        """Returns the content of a JSON file, None if there is no such file."""
        text = self.read(*names)
        return None if text is None else json.loads(text)

    def read_records(self, name: str) -> list[dict[str, Any]]:
        """Returns the objects of a file of one JSON object per line, but for a last line that is being written."""
        return [json.loads(line) for line in _whole_lines(self.read(name) or "")]

    def write(self, name: str, text: str, durable: bool = False) -> None:
        """Writes a file whole: a reader finds the old or the new text; if durable, even after a power cut."""
        self.fs.write(self.path(name), text.encode(), durable)

    def write_json(self, name: str, content: Any, durable: bool = False) -> None:
        """Writes an indented JSON file."""
        self.write(name, json.dumps(content, indent=2) + "\n", durable)


class JsonLines:
    """A file of one JSON object per line, each with a `step`. On storage that cannot append, `flush` rewrites the file.

    Args:
        run: The run directory.
        name: The file name.
        last_step: Lines of later steps are dropped, as a resumed run rewrites them.
    """

    def __init__(self, run: RunDirectory, name: str, last_step: int) -> None:
        self._run, self._name = run, name
        text = run.read(name) or ""
        whole = _whole_lines(text)
        self._lines = [line for line in whole if json.loads(line)["step"] <= last_step]
        is_as_written = len(self._lines) == len(whole) and text[-1:] in ("", "\n")
        self._written = len(whole) if is_as_written else -1
        self.flush()

    def add(self, record: dict[str, Any]) -> None:
        """Adds one line."""
        self._lines.append(json.dumps(record))
        if self._run.fs.is_local and self._written == len(self._lines) - 1:
            self._written = -1  # a failed append may leave a partial line: flush rewrites the file
            with self._run.fs.open(self._run.path(self._name), "a") as file:
                file.write(self._lines[-1] + "\n")
            self._written = len(self._lines)

    def discard(self, **values: Any) -> None:
        """Removes the lines with these values. `flush` rewrites the file."""
        kept = [line for line in self._lines if not values.items() <= json.loads(line).items()]
        if len(kept) < len(self._lines):
            self._lines, self._written = kept, -1

    def records(self) -> list[dict[str, Any]]:
        """Returns the lines."""
        return [json.loads(line) for line in self._lines]

    def flush(self) -> None:
        """Writes the pending lines."""
        if self._written != len(self._lines):
            self._run.write(self._name, "".join(line + "\n" for line in self._lines))
            self._written = len(self._lines)


def _whole_lines(text: str) -> list[str]:
    """Returns the lines of a text but for a partial last line, which a crash or a write under way leaves."""
    return text[: text.rfind("\n") + 1].splitlines()
