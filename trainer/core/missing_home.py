"""Gives a process a home and a user name if its user id has no account, as in some containers and batch systems.

Without HOME, importing TorchX ends in a traceback, and our caches and records would, too. Without a name, torch fails
when it compiles. The wheel installs `home.pth`, which calls `settle` in every Python that starts without HOME: the
command `torchx` reads HOME before it reaches any other code of ours.
"""

import os
import pwd

HOME = "/"  # Docker's choice for such a user; records and caches then need another directory
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # the variables that getpass reads before it looks for an account


def settle() -> None:
    """Sets HOME and USER if they are not set and the user has no account."""
    if "HOME" in os.environ and any(os.environ.get(name) for name in NAMES):
        return
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("HOME", HOME)
        os.environ.setdefault("USER", str(os.getuid()))
