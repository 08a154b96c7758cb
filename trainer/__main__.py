"""`python -m trainer COMMAND ...`: parses, runs, and maps errors to exit codes.

0: done. 1: failed, with a traceback, or with a line if storage or a rank failed. 2: wrong input, with a line.
75: stopped on request (preemption.py). 130: Ctrl-C.
"""
# An interrupt is to be quiet from the first line on, also while torch is imported.

from trainer.core.interrupts import default_to_quiet, raise_again
from trainer.core.own_modules import find_own_first, run_copy_here

if __name__ == "__main__":
    default_to_quiet()
    run_copy_here()
    find_own_first()

import contextlib
import os
import signal
import sys
from typing import NoReturn

from trainer.commands import check_command, read_command, usage, versions
from trainer.core.console import quiet_libraries, write_whole_lines
from trainer.core.errors import REPORTED_ERRORS, report_error
from trainer.core.missing_home import settle
from trainer.core.outcome import WRONG_INPUT

CHECK = "--check"  # what schedulers put before the words of a command that a job is to run
INTERRUPTED = 128 + signal.SIGINT


def main(arguments: list[str]) -> int:
    """Runs a command and returns its exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments == ["--version"]:
        print(versions())
        return 0
    raise_again()
    settle()
    quiet_libraries()
    # Read by torch when a GPU is first used. So its allocator holds 12 % more than it gives out, by default it held 28:
    # DLRM with 26 tables in batches of 65,536 on an H200.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    try:
        if arguments[0] == CHECK:
            check_command(arguments[1:])
        else:
            read_command(arguments)()
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except REPORTED_ERRORS as error:
        return report_error(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def run(arguments: list[str]) -> NoReturn:
    """Runs a command and ends the process."""
    write_whole_lines()
    try:
        leave(main(arguments))
    except SystemExit as leaving:
        leave(leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1)


def leave(code: int) -> NoReturn:
    """Exits without shutting the interpreter down, during which threads of libraries can abort a finished job."""
    if code == WRONG_INPUT and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        os.kill(os.getppid(), signal.SIGTERM)  # torchrun starts its ranks again whatever their exit code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run(sys.argv[1:])
