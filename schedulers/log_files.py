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

from torchx.schedulers.api import filter_regex

from schedulers.errors import SchedulerError

POLL_SECONDS = 0.2


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


def lines(files: list[Path], ended: Callable[[], bool] | None) -> Iterator[str]:
    """Yields the lines of the files, one file after the other, each with its line end.

    Args:
        files: Files, which need not exist yet.
        ended: Returns whether nothing more will be written; until then, new lines are yielded as they come. None stops
            at the current ends of the files.

    Raises:
        SchedulerError: A file to which the job still writes was deleted.
    """
    positions: dict[Path, int] = {}
    while True:
        # Called before the files are read, so that lines written just before the end are not lost.
        last = ended is None or ended()
        for file in files:
            yield from _new_lines(file, positions, last)
        if last:
            return
        if (gone := [file for file in positions if not file.exists()]) and ended and not ended():
            raise SchedulerError(
                f"{gone[0]} was deleted while it was followed: what the job writes from now on is lost"
            )
        time.sleep(POLL_SECONDS)


def _new_lines(path: Path, positions: dict[Path, int], last: bool) -> Iterator[str]:
    """Yields complete lines, at the end also an incomplete one, and advances the file's position."""
    if not path.exists():
        return
    with path.open("rb") as file:
        if positions.setdefault(path, 0) > file.seek(0, 2):  # a restart has truncated it
            positions[path] = 0
        file.seek(positions[path])
        for line in file:
            if not last and not line.endswith(b"\n"):
                return
            positions[path] += len(line)
            yield line.decode(errors="replace").removesuffix("\n") + "\n"
