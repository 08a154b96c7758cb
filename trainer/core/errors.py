"""Errors by type, and their reports: the user's mistakes in one line, bugs with a traceback."""

import difflib
import fcntl
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.core.outcome import FAILED, WRONG_INPUT, WRONG_INPUT_WORDS, write_outcome
from trainer.core.secrets import without_secrets

OWN = "name package.module:object for your own"  # a remedy to pass to `nearest`
MOST_NAMED = 20  # largest number of names in a message
LONGEST_LINE = 4000  # largest number of characters in an error


class InputError(ValueError):
    """The user's mistake: a key, a flag, a file or data that cannot be used.

    The message is one line that names the key or flag, its value, the allowed values and the remedy. Exit code 2.
    """


class NoRows(InputError):
    """The data has no row, or no batch, to train on. An error for a run, but a segment of it may be empty."""


class StorageError(OSError):
    """Storage failed. The input is right, so another attempt may succeed. One line, exit code 1."""


class StorageNotFoundError(StorageError, FileNotFoundError):
    """Storage has no such file or directory."""


class StorageExistsError(StorageError, FileExistsError):
    """Storage already has such a file."""


class StoragePermissionError(StorageError, PermissionError):
    """Storage refuses access."""


class StorageUnsupportedError(StorageError):
    """The kind of storage, or the server, does not support an operation."""


class DamagedError(StorageError):
    """A small file is damaged: torn, or with other bits than were written. Another attempt would find the same."""


class LostRankError(RuntimeError):
    """A rank does not answer. Another attempt, on other hosts, may succeed. One line, exit code 1."""


REPORTED_ERRORS = (InputError, StorageError, LostRankError)
"""Errors whose message is all that the user needs. Any other error is a bug and keeps its traceback."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type if it has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def report_error(error: BaseException) -> int:
    """Reports an error and returns the exit code of its type.

    The first rank of a host with an error prints the error to stderr, without the secrets of URLs. The scheduler also
    learns of the user's mistakes.
    """
    if isinstance(error, REPORTED_ERRORS):
        with _once_on_this_host() as is_first:
            if is_first:
                _say(error)
        return WRONG_INPUT if isinstance(error, InputError) else FAILED
    print(without_secrets("".join(traceback.format_exception(error))), end="", file=sys.stderr, flush=True)
    return FAILED


def _say(error: BaseException) -> None:
    line = _shortened(" ".join(without_secrets(error).split()))
    print(f"error: {line}", file=sys.stderr, flush=True)
    # Storage that cannot be reached may be back at the next attempt.
    if isinstance(error, InputError) and type(error.__cause__) is not StorageError:
        write_outcome(f"{WRONG_INPUT_WORDS}: {line}")


def _shortened(line: str) -> str:
    """Shortens a very long line in its middle, which repeats a value: the end has the remedy."""
    left = len(line) - LONGEST_LINE
    if left <= 0:
        return line
    return f"{line[: LONGEST_LINE // 2]} ... ({left:,} characters are left out) ... {line[-LONGEST_LINE // 2 :]}"


@contextmanager
def _once_on_this_host() -> Iterator[bool]:
    """Yields whether this rank is the first of its host to report in this attempt; most ranks have the same error.

    The others wait for the first rank, as torchrun ends all ranks when the first leaves.
    """
    own = os.environ.get("TORCHELASTIC_ERROR_FILE")  # ATTEMPT/RANK/error.json
    try:
        file = Path(own).parents[1].joinpath("reported").open("a") if own else None
    except OSError:  # the disk is full: every rank reports
        file = None
    if file is None:
        yield True
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield os.fstat(file.fileno()).st_size == 0
        with suppress(OSError):
            file.write("x")
            file.flush()


def some_of(names: Iterable[object], most: int = MOST_NAMED) -> str:
    """Lists names for a message, only the first if there are many: `a, b, and 19,998 more`."""
    listed = [str(name) for name in names]
    more = [f"and {len(listed) - most:,} more"] if len(listed) > most else []
    return ", ".join([*listed[:most], *more])


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Returns `; did you mean 'x'?` for the known name closest to `name`, or the known names if none is close.

    Args:
        name: An unknown name.
        known: The known names.
        otherwise: What else the user can do; it follows the names.
    """
    known = sorted(known)
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"; did you mean '{close[0]}'?" + (f" If not, {otherwise}" if otherwise else "")
    if not known and otherwise:
        return f"; {otherwise}"
    return f"; known: {some_of(known)}" + (f"; {otherwise}" if otherwise else "")
