"""Lines of log files that may still grow.

TorchX's LogIterator follows one file and yields chunks of 64,000 characters, which end within lines and so defeat
`--regex`. It fails where a file is missing, and does not notice that a restart has truncated it.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_SECONDS = 0.2


def lines(files: list[Path], ended: Callable[[], bool] | None) -> Iterator[str]:
    """Yields the lines of the files, one file after the other, each with its line end.

    Args:
        files: Files, which need not exist yet.
        ended: Returns whether nothing more will be written; until then, new lines are yielded as they come. None stops
            at the present ends of the files.
    """
    positions = dict.fromkeys(files, 0)
    while True:
        # Called before the files are read, so that lines written just before the end are not lost.
        last = ended is None or ended()
        for file in files:
            yield from _new_lines(file, positions, last)
        if last:
            return
        time.sleep(POLL_SECONDS)


def _new_lines(path: Path, positions: dict[Path, int], last: bool) -> Iterator[str]:
    """Yields the lines that are complete, the last time also an incomplete one, and moves the file's position on."""
    if not path.exists():
        return
    with path.open("rb") as file:
        if positions[path] > file.seek(0, 2):  # a restart has truncated it
            positions[path] = 0
        file.seek(positions[path])
        for line in file:
            if not last and not line.endswith(b"\n"):
                return
            positions[path] += len(line)
            yield line.decode(errors="replace").removesuffix("\n") + "\n"
