"""Module search: a process of ours finds the project's own modules before a user's modules of the same names.

`python -m` puts the working directory first on sys.path, and a user's directory may well hold a `trainer.py` or a
package `components`.
"""

import os
import sys

PACKAGES = ("components", "schedulers", "torchx_recsys", "trainer")
ROOT = os.path.realpath(f"{__file__}/../../..")


def find_own_first() -> None:
    """Moves the working directory, and other directories with modules of our names, to the end of sys.path.

    `package.module:object` of a user is still found there. In a checkout nothing changes for the checkout itself.
    """
    here = _working_directory()
    places = {place: os.path.realpath(place) for place in sys.path}
    others = [place for place, real in places.items() if real not in (ROOT, here) and any(_names(real))]
    last = [*others, *([here] if here and here != ROOT else [])]
    sys.path[:] = [place for place in sys.path if place not in others and places[place] not in last] + last


def run_copy_here() -> None:
    """Starts this program again from the working directory, if that has a copy of the project, as a workspace may.

    Jobs start with `python -P`, for which a user's own `trainer` is not ours; but neither is a changed copy of ours.
    """
    here = _working_directory()
    options = sys.orig_argv[1 : sys.orig_argv.index("-m")] if "-m" in sys.orig_argv else []
    is_copy = here != ROOT and os.path.isfile(f"{here}/trainer/core/{os.path.basename(__file__)}")
    if "-P" in options and is_copy:
        options.remove("-P")
        os.execv(sys.executable, [sys.executable, *options, *sys.orig_argv[sys.orig_argv.index("-m") :]])


def rename(module: str) -> str:
    """Returns the end of a message about a missing module: to rename it, if ours hides one; else nothing."""
    name = module.partition(".")[0]
    hides = (place for place in sys.path if os.path.realpath(place) != ROOT and name in _names(place))
    if name not in PACKAGES or not (place := next(hides, None)):
        return ""
    return f"; '{name}' is a package of torchx-recsys, which hides the one in '{place}': rename that"


def _names(place: str) -> list[str]:
    """Returns the names of ours that modules or packages in a directory have."""
    return [name for name in PACKAGES if os.path.isdir(f"{place}/{name}") or os.path.isfile(f"{place}/{name}.py")]


def _working_directory() -> str | None:
    """Returns the working directory; None if it has been removed."""
    try:
        return os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return None
