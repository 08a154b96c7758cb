"""A home and a name for a user id that has no account, as some containers and batch systems run jobs.

Without HOME, TorchX ends in a traceback as it is imported, and so would our caches and records; without a name, torch
does when it compiles. `home.pth`, which the wheel installs, calls `settle` in every Python that starts without HOME, as
the command `torchx` comes to no other code of ours before it looks.
"""

import os
import pwd

HOME = "/"  # what Docker gives such a user; records and caches then want a directory that can be written
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # those that getpass takes before it looks for an account


def settle() -> None:
    """Sets HOME and USER where this process has none and its user no account."""
    if "HOME" in os.environ and any(os.environ.get(name) for name in NAMES):
        return
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("HOME", HOME)
        os.environ.setdefault("USER", str(os.getuid()))
