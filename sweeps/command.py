"""The command `torchx sweep`: its command line. TorchX imports it for each of its commands, so it imports little."""

import argparse
import logging

from torchx.cli.cmd_base import SubCommand
from torchx.runner.config import get_config
from torchx.schedulers import get_scheduler_factories

from components.cli.base import errors_in_one_line
from trainer.core.errors import InputError


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
        with errors_in_one_line("torchx sweep"):
            default = get_config("cli", "run", "scheduler") or "local_cwd"
        names = [*get_scheduler_factories()]
        run.add_argument(
            "-s", "--scheduler", default=default, choices=names, metavar="NAME", help=f"default: {default}"
        )
        run.add_argument("-cfg", "--scheduler_args", default="", metavar="KEY=VALUE,..", help="options for all trials")
        run.add_argument("--dryrun", action="store_true", help="print the request of a first trial, submit nothing")
        command("status", "Show the trials, from the best.")
        command("cancel", "End the jobs of all trials and the sweep; run goes on with it.")

    def run(self, args: argparse.Namespace) -> None:
        """Runs one of the commands."""
        logging.getLogger("torchx.runner").setLevel(logging.WARNING)  # it says something about each request
        with errors_in_one_line("torchx sweep"):
            try:
                from sweeps import actions
            except ModuleNotFoundError as error:
                raise InputError(f"{error.name} is missing: pip install 'torchx-recsys[sweep]'") from error
            getattr(actions, args.action)(args)
