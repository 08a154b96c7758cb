"""How an error is said: in one line if it is about the input, with a traceback if it is a bug."""

import sys
import traceback

from trainer.core.outcome import FAILED, WRONG_INPUT


def say(error: BaseException) -> int:
    """Prints an error for people and returns the exit code that belongs to it."""
    if _raised_here(error):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return WRONG_INPUT
    traceback.print_exception(error)
    return FAILED


def _raised_here(error: BaseException) -> bool:
    """Tells whether this package raised an error, which is then about the input; one out of a library is a bug."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("trainer", "__main__")
