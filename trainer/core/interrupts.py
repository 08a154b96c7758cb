"""Ctrl-C before there is anything to save: ends the process silently.

Python's KeyboardInterrupt would print a traceback through forty imports.
"""

import signal


def default_to_quiet() -> None:
    """Makes Ctrl-C end this process at once, unless Ctrl-C is ignored, as in a background job of a shell."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, so that unfinished work is undone."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
