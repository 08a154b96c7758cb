"""Lines of log files that may still grow.

TorchX's LogIterator follows one file and yields chunks of 64,000 characters, which end within lines and so defeat
`--regex`. It fails where a file is missing, and does not notice that a restart has truncated it.
"""

import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from torchx.schedulers.api import filter_regex

from schedulers.errors import SchedulerError

POLL_SECONDS = 0.2
PART_BYTES = 1 << 20  # a log that gave so much may have more


def ignore_times(scheduler: str, since: datetime | None, until: datetime | None) -> None:
    """Warns that a scheduler whose logs are plain files cannot filter lines by time."""
    if since or until:
        line = f"{scheduler} does not know when a line was written: since and until are ignored"
        warnings.warn(line, stacklevel=3)


def matching(regex: str | None, found: Iterable[str]) -> Iterable[str]:
    """Returns the lines that match a regular expression; all lines without one.

    Raises:
        SchedulerError: The regular expression is malformed.
    """
    if not regex:
        return found
    try:
        return filter_regex(regex, found)
    except re.error as error:
        raise SchedulerError(f"--regex {regex}: must be a regular expression: {error}") from error


def open_at(path: Path, position: int) -> tuple[BinaryIO, int] | None:
    """Opens a log at a position, or at its beginning if a restart has truncated it; None if there is no such file."""
    if not path.exists():
        return None
    file = path.open("rb")
    position = 0 if position > file.seek(0, 2) else position
    file.seek(position)
    return file, position


Open = Callable[[Path, int], tuple[BinaryIO, int] | None]


def lines(
    files: list[Path], ended: Callable[[], bool] | None, open_log: Open = open_at, pause: float = POLL_SECONDS
) -> Iterator[str]:
    """Yields the lines of the files, one file after the other, each with its line end.

    Args:
        files: Files, which need not exist yet.
        ended: Returns whether nothing more will be written; until then, new lines are yielded as they come. None stops
            at the current ends of the files.
        open_log: Opens a file, or a part of it, as `open_at` does.
        pause: Seconds before the files are read again.

    Raises:
        SchedulerError: A file to which the job still writes was deleted.
    """
    logs = [_Log(file, open_log) for file in files]
    while True:
        # Called before the files are read, so that lines written just before the end are not lost.
        last = ended is None or ended()
        for log in logs:
            yield from log.new_lines(last)
        if last:
            return
        if (gone := [log for log in logs if log.is_gone]) and ended and not ended():
            raise SchedulerError(
                f"{gone[0].path} was deleted while it was followed: what the job writes from now on is lost"
            )
        time.sleep(pause)


class _Log:
    """A log that is read while it grows."""

    def __init__(self, path: Path, open_log: Open) -> None:
        self.path = path
        self.is_gone = False  # after it was there
        self._open_log = open_log
        self._position: int | None = None

    def new_lines(self, last: bool) -> Iterator[str]:
        """Yields complete lines, at the end also an incomplete one."""
        rest = b""
        read = PART_BYTES
        while read >= PART_BYTES:  # a part of a long log may not be all of it
            opened = self._open_log(self.path, self._position or 0)
            self.is_gone = opened is None and self._position is not None
            if opened is None:
                return
            file, start = opened
            self._position, rest = start, b""
            with file:
                for line in file:
                    if not line.endswith(b"\n"):
                        rest = line
                        break
                    self._position += len(line)
                    yield _text(line)
            read = self._position - start
        if last and rest:
            yield _text(rest)


def _text(line: bytes) -> str:
    return line.decode(errors="replace").removesuffix("\n") + "\n"
