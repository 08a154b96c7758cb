"""Behaviour that all commands share: errors in one line, and this machine as the default scheduler."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torchx.runner.config import get_configs
from torchx.schedulers.local_scheduler import SignalException

from components.launch import ArgumentError
from schedulers.errors import SchedulerError
from trainer.core.outcome import WRONG_INPUT


def default_to_local(subparser: argparse.ArgumentParser, command: str) -> None:
    """Makes `local_cwd` the default where `.torchxconfig` names no scheduler; TorchX takes the first by name."""
    if "scheduler" not in get_configs("cli", command):
        subparser.set_defaults(scheduler="local_cwd")


@contextmanager
def errors_in_one_line(command: str) -> Iterator[None]:
    """Ends the program with one line for wrong input, and silently when it is interrupted."""
    try:
        yield
    except (ArgumentError, SchedulerError) as error:
        print(f"torchx {command}: error: {error}", file=sys.stderr)
        sys.exit(WRONG_INPUT)
    except SignalException as stop:
        sys.exit(128 + stop.sigval)
    except KeyboardInterrupt:
        sys.exit(130)
