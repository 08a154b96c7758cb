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
    readers = [_Reader(file) for file in files]
    while True:
        # Called before the files are read, so that lines written just before the end are not lost.
        last = ended is None or ended()
        for reader in readers:
            yield from reader.new_lines(last)
        if last:
            return
        time.sleep(POLL_SECONDS)


class _Reader:
    """The position up to which a file has been read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._position = 0

    def new_lines(self, last: bool) -> Iterator[str]:
        """Yields the lines that are complete; the last time also an incomplete one."""
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
                yield line.decode(errors="replace").removesuffix("\n") + "\n"
