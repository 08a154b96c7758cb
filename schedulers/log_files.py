"""Lines of log files that may still grow."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLL_SECONDS = 0.5


def lines(files: list[Path], ended: Callable[[], bool] | None) -> Iterator[str]:
    """Yields what is in the files, one after the other, with the line ends.

    Args:
        files: Need not exist yet.
        ended: Says whether nothing more will be written; until then, new lines are yielded as they come. None stops
            at what is there.
    """
    readers = [_Reader(file) for file in files]
    while True:
        # Asked first, so that what was written before the end is still read.
        last = ended is None or ended()
        for reader in readers:
            yield from reader.new_lines(last)
        if last:
            return
        time.sleep(POLL_SECONDS)


class _Reader:
    """Reads on where it left off."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = 0

    def new_lines(self, last: bool) -> Iterator[str]:
        """Yields the lines that are complete; at the very end also an incomplete one."""
        if not self._file.exists():
            return
        with self._file.open("rb") as file:
            if self._position > file.seek(0, 2):  # a restart has truncated it
                self._position = 0
            file.seek(self._position)
            for line in file:
                if not last and not line.endswith(b"\n"):
                    return
                self._position += len(line)
                yield line.decode(errors="replace")
