"""TorchX's commands for submitted jobs, with one line for what a scheduler cannot do."""

import argparse

from torchx.cli.cmd_base import SubCommand
from torchx.cli.cmd_cancel import CmdCancel
from torchx.cli.cmd_delete import CmdDelete
from torchx.cli.cmd_describe import CmdDescribe
from torchx.cli.cmd_list import CmdList
from torchx.cli.cmd_status import CmdStatus

from components._cli import for_people, stay_here


def _in_one_line(name: str, command: type[SubCommand]) -> type[SubCommand]:
    class Command(command):
        """TorchX's own command, which ends with one line, not with a traceback, if the scheduler cannot do it."""

        def run(self, args: argparse.Namespace) -> None:
            """Runs the command."""
            with for_people(name):
                super().run(args)

    return Command


class _List(CmdList):
    """TorchX's own `list`, of this machine's jobs by default."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds TorchX's own."""
        super().add_arguments(subparser)
        stay_here(subparser, "list")


Status = _in_one_line("status", CmdStatus)
List = _in_one_line("list", _List)
Cancel = _in_one_line("cancel", CmdCancel)
Delete = _in_one_line("delete", CmdDelete)
Describe = _in_one_line("describe", CmdDescribe)
