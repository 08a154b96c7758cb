"""Ctrl-C before there is anything to save: the process ends, and says nothing.

Python's own KeyboardInterrupt would show the forty imports that it came upon.
"""

import signal


def default_to_quiet() -> None:
    """Lets Ctrl-C end this process at once, unless it is ignored, as for a job that a shell put in the background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt, so that what was begun is undone."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
