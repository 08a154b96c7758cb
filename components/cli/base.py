"""Behaviour that all commands share: errors in one line, and this machine as the default scheduler."""

import argparse
import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from torchx.runner import Runner
from torchx.runner.config import get_configs
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.local_scheduler import SignalException
from torchx.specs import AppStatus, CfgVal, InvalidRunConfigException, UnknownSchedulerException
from torchx.specs.api import MalformedAppHandleException
from torchx.util.types import to_dict

from components.cli.containers import docker_line
from components.cli.defaults import DefaultsError, cast
from components.launch import ArgumentError
from schedulers.errors import SchedulerError
from trainer.core.errors import InputError
from trainer.core.outcome import FAILED, WRONG_INPUT

USERS_MISTAKES = (ArgumentError, DefaultsError, InputError, SchedulerError, MalformedAppHandleException)
# A directory is full, read-only or another user's, or a name is too long. Any other OSError is a bug.
STORAGE_ERRORS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG),
)


def default_to_local(subparser: argparse.ArgumentParser, command: str) -> None:
    """Makes `local_cwd` the default where `.torchxconfig` names no scheduler; TorchX takes the first by name."""
    if "scheduler" not in get_configs("cli", command):
        subparser.set_defaults(scheduler="local_cwd")


def check_scheduler_args(runner: Runner, args: argparse.Namespace) -> None:
    """Refuses a `-cfg` that the scheduler does not know.

    Raises:
        ArgumentError: It has an unknown key or a wrong value.
    """
    options = runner.scheduler_run_opts(args.scheduler)
    try:
        for key, text in to_dict(args.scheduler_args or "").items():
            if option := options.get(options.canonical_key(key) or key):
                cast(option, text)
        options.cfg_from_str(args.scheduler_args or "")
    except (ValueError, InvalidRunConfigException) as error:
        allowed = f"KEY=VALUE,... as `torchx runopts {args.scheduler}` lists them ({error})"
        raise ArgumentError("-cfg", args.scheduler_args, allowed) from error


def require_options(runner: Runner, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
    """Refuses a submission without an option that its scheduler requires, such as Volcano's queue.

    Raises:
        SchedulerError: An option is missing.
    """
    for name, option in runner.scheduler_run_opts(scheduler):
        if option.is_required and cfg.get(name) is None:
            place = f"-cfg {name}=..., or {name} = ... under [{scheduler}] in .torchxconfig"
            raise SchedulerError(f"-s {scheduler}: its option {name} is missing: give {place}")


def require_job(runner: Runner, handle: str, program: str) -> AppStatus:
    """Returns the status of a job; ends the program with one line if there is no such job."""
    if status := runner.status(handle):
        return status
    print(f"{program}: error: no such job: {handle}", file=sys.stderr)
    sys.exit(FAILED)


@contextmanager
def errors_in_one_line(program: str = "torchx") -> Iterator[None]:
    """Ends the program with one line for wrong input, and silently when it is interrupted or its output is not read."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except USERS_MISTAKES as error:
        _end(program, error)
    except UnknownSchedulerException as error:
        _end(program, f"{str(error).partition('. ')[0]}; there are {', '.join(get_scheduler_factories())}")
    except SignalException as stop:
        sys.exit(128 + stop.sigval)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        # TorchX's own scheduler `local_docker` lets the errors of its client through.
        line = docker_line(error) or (isinstance(error, OSError) and error.errno in STORAGE_ERRORS and error)
        if not line:
            raise
        _end(program, line)


def _end(program: str, message: object) -> NoReturn:
    print(f"{program}: error: {message}", file=sys.stderr)
    sys.exit(WRONG_INPUT)
