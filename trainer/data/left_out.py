"""What a directory or a glob leaves out: hidden and temporary files, and directories that are listed already."""

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from threading import Lock

from trainer.core.console import plural
from trainer.core.secrets import without_secrets

HIDDEN = "hidden or temporary"
LISTED_ALREADY = "linked to what is listed already"
CLOSED = "closed to this user"
MARKS = (".", "_")


class LeftOutPaths:
    """The paths that listings leave out, by the reason: their number, and one to name."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}
        self._lock = Lock()

    def add(self, reason: str, path: str) -> None:
        """Adds a path."""
        number, first = self._found.get(reason, (0, path))
        self._found[reason] = number + 1, min(first, path)

    def update(self, other: "LeftOutPaths") -> None:
        """Adds what another has."""
        with self._lock:
            for reason, (number, path) in other._found.items():
                before, first = self._found.get(reason, (0, path))
                self._found[reason] = before + number, min(first, path)

    def reasons(self) -> Iterator[str]:
        """Yields a text for each reason."""
        for reason, (number, path) in sorted(self._found.items()):
            others = f", and {number - 1:,} more" if number > 1 else ""
            yield f"left out {plural(number, 'path')}, {reason}: {without_secrets(path)}{others}"


class HiddenNames:
    """Tells the names that Spark, Dask and pyarrow.dataset leave out: those with a dot or an underscore in front.

    Not those with `=`, which are partitions of a column with such a name.

    Args:
        asked_for: Names or globs that a pattern has in so many words.
    """

    def __init__(self, asked_for: Collection[str] = ()) -> None:
        self._asked_for = [one for one in asked_for if one.startswith(MARKS)]

    def __contains__(self, name: str) -> bool:
        if not name.startswith(MARKS) or "=" in name:
            return False
        return not any(fnmatchcase(name, one) for one in self._asked_for)

    def on_the_way(self, path: str) -> bool:
        """Returns whether a relative path has a hidden name."""
        return any(name in self for name in path.split("/"))
