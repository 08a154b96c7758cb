"""The command line of `torchx sweep`. TorchX imports this file for each of its commands, so it imports little."""

import argparse
import logging

from torchx.cli.cmd_base import SubCommand

from components.cli.base import errors_in_one_line
from torchx_recsys.pipelines.command import add_target
from trainer.core.errors import InputError
from trainer.core.own_modules import find_own_first


class SweepCommand(SubCommand):
    """Tries values of a configuration as jobs, and finds the best."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds the three commands."""
        commands = subparser.add_subparsers(metavar="COMMAND", required=True)

        def command(name: str, text: str) -> argparse.ArgumentParser:
            added = commands.add_parser(name, help=text, description=text)
            added.add_argument("file", metavar="FILE", help="sweep file")
            added.set_defaults(action=name)
            return added

        run = command("run", "Run trials until the budget is used up; a sweep that was killed goes on.")
        add_target(run, "options for all trials")
        run.add_argument("--dryrun", action="store_true", help="print the request of a first trial, submit nothing")
        command("status", "Show the trials, from the best.")
        command("cancel", "End the jobs of all trials and the sweep; run goes on with it.")

    def run(self, args: argparse.Namespace) -> None:
        """Runs one of the commands."""
        logging.getLogger("torchx.runner").setLevel(logging.WARNING)  # it logs a line for each request
        find_own_first()  # the aim may be a metric of the user's own
        with errors_in_one_line("torchx sweep"):
            try:
                from torchx_recsys.sweeps import actions
            except ModuleNotFoundError as error:
                raise InputError(
                    f"{str(error.name).partition('.')[0]} is missing: pip install 'torchx-recsys[sweep]'"
                ) from error
            getattr(actions, args.action)(args)
