"""The commands for submitted jobs: `log`, `status`, `list`, `cancel`, `delete` and `describe`."""

import argparse
import sys
import threading

from torchx.cli.cmd_base import SubCommand
from torchx.cli.cmd_cancel import CmdCancel
from torchx.cli.cmd_delete import CmdDelete
from torchx.cli.cmd_describe import CmdDescribe
from torchx.cli.cmd_list import CmdList
from torchx.cli.cmd_log import CmdLog, validate
from torchx.cli.cmd_status import CmdStatus
from torchx.runner import get_runner

from components.cli.base import default_to_local, errors_in_one_line
from trainer.core.outcome import FAILED


class Log(CmdLog):
    """TorchX's own `log`, with `-f` as `tail` has it."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds `-f`, another name of `-t`."""
        super().add_arguments(subparser)
        subparser.add_argument("-f", "--follow", dest="tail", action="store_true", help="The same as --tail")

    def run(self, args: argparse.Namespace) -> None:
        """Prints the logs."""
        # TorchX raises an error of one of its threads once more in this one: it is printed once only.
        threading.excepthook = lambda _: None
        validate(args.identifier)
        handle = "/".join(args.identifier.split("/")[:4])
        with errors_in_one_line("log"):
            with get_runner() as runner:
                if runner.status(handle) is None:
                    print(f"torchx log: error: there is no job {handle}", file=sys.stderr)
                    sys.exit(FAILED)
            super().run(args)


class _List(CmdList):
    """TorchX's own `list`, of local jobs by default."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds TorchX's own arguments."""
        super().add_arguments(subparser)
        default_to_local(subparser, "list")


def _with_errors_in_one_line(name: str, command: type[SubCommand]) -> type[SubCommand]:
    class Command(command):
        """TorchX's own command, which ends with one line, not with a traceback, if the scheduler fails."""

        def run(self, args: argparse.Namespace) -> None:
            """Runs the command."""
            with errors_in_one_line(name):
                super().run(args)

    return Command


Status = _with_errors_in_one_line("status", CmdStatus)
List = _with_errors_in_one_line("list", _List)
Cancel = _with_errors_in_one_line("cancel", CmdCancel)
Delete = _with_errors_in_one_line("delete", CmdDelete)
Describe = _with_errors_in_one_line("describe", CmdDescribe)
