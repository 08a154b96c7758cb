"""TorchX's commands for submitted jobs, with one line for what a scheduler cannot do."""

import argparse
import sys

from torchx.cli.cmd_base import SubCommand
from torchx.cli.cmd_cancel import CmdCancel
from torchx.cli.cmd_delete import CmdDelete
from torchx.cli.cmd_describe import CmdDescribe
from torchx.cli.cmd_list import CmdList
from torchx.cli.cmd_status import CmdStatus

from components._cli import stay_here
from schedulers.errors import SchedulerError


def _for_people(name: str, command: type[SubCommand]) -> type[SubCommand]:
    class Command(command):
        """TorchX's own command, which ends with one line, not with a traceback, if the scheduler cannot do it."""

        def run(self, args: argparse.Namespace) -> None:
            """Runs the command."""
            try:
                super().run(args)
            except SchedulerError as error:
                print(f"torchx {name}: error: {error}", file=sys.stderr)
                sys.exit(2)

    return Command


class _List(CmdList):
    """TorchX's own `list`, of this machine's jobs by default."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds TorchX's own."""
        super().add_arguments(subparser)
        stay_here(subparser, "list")


Status = _for_people("status", CmdStatus)
List = _for_people("list", _List)
Cancel = _for_people("cancel", CmdCancel)
Delete = _for_people("delete", CmdDelete)
Describe = _for_people("describe", CmdDescribe)
