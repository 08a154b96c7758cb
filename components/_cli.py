"""`torchx run`, which also says what to type next."""

import argparse
import re
import sys
from contextlib import redirect_stdout
from typing import Any, TextIO

from torchx.cli.cmd_run import CmdRun

from components._launch import ArgumentError

# The builtin `local_cwd` keeps its jobs in the memory of the shell that runs them.
FORGETFUL_SCHEDULERS = {"local_cwd"}


class Run(CmdRun):
    """TorchX's own `run`, with the next commands after the app handle and one line for a wrong argument."""

    def run(self, args: argparse.Namespace) -> None:
        """Runs the command; the handle alone goes to stdout, as ever."""
        try:
            with redirect_stdout(_HandleWatcher(sys.stdout)):
                super().run(args)
        except ArgumentError as error:
            print(f"torchx run: error: {error}", file=sys.stderr)
            sys.exit(2)


class _HandleWatcher:
    """Passes output on, and follows the line that is an app handle with the next commands on stderr."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._line = ""

    def write(self, text: str) -> int:
        self._stdout.write(text)
        self._line += text
        if self._line.endswith("\n"):
            handle, self._line = self._line.strip(), ""
            if re.fullmatch(r"[\w-]+://[^/\s]*/\S+", handle):
                self._stdout.flush()
                print(next_commands(handle), file=sys.stderr, flush=True)
        return len(text)

    def flush(self) -> None:
        self._stdout.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)


def next_commands(handle: str) -> str:
    """What somebody who has just submitted `handle` can do now."""
    if handle.partition("://")[0] in FORGETFUL_SCHEDULERS:
        return "next: the job runs in this shell; Ctrl-C cancels it"
    return "\n".join(["next:", *(f"  torchx {command} {handle}" for command in ("status", "log", "cancel"))])
