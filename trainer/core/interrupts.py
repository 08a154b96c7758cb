"""Ctrl-C before there is anything to save: the process ends silently.

Python's own KeyboardInterrupt would show the forty imports that it interrupted.
"""

import signal


def default_to_quiet() -> None:
    """Lets Ctrl-C end this process at once, unless Ctrl-C is ignored, as in a background job of a shell."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> None:
    """Lets Ctrl-C raise KeyboardInterrupt, so that unfinished work is undone."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
