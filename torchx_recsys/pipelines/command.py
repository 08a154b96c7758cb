"""The command line of `torchx pipeline`. TorchX imports this file for each of its commands, so it imports little."""

import argparse
import logging

from torchx.cli.cmd_base import SubCommand
from torchx.runner.config import get_config
from torchx.schedulers import get_scheduler_factories

from components.cli.base import errors_in_one_line
from trainer.core.own_modules import find_own_first


class PipelineCommand(SubCommand):
    """Runs jobs that follow each other from one file, and shows, follows and cancels them."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds the four commands."""
        commands = subparser.add_subparsers(metavar="COMMAND", required=True)

        def command(name: str, text: str) -> argparse.ArgumentParser:
            added = commands.add_parser(name, help=text, description=text)
            added.add_argument("file", metavar="FILE", help="pipeline file, or the name of a ready-made one")
            added.add_argument(
                "--set",
                metavar="KEY=VALUE",
                action="append",
                default=[],
                help="another value than the file's, repeatable",
            )
            added.set_defaults(action=name)
            return added

        run = command("run", "Submit the steps that have not succeeded with the same inputs, all at once.")
        add_target(run, "options for all steps")
        run.add_argument("--from", dest="start", metavar="STEP", help="run this step and those after it again")
        run.add_argument("--only", metavar="STEP", help="run only this step, again if it has succeeded")
        run.add_argument("--wait", action="store_true", help="wait until all steps have ended; 1 if one has failed")
        run.add_argument("--dryrun", action="store_true", help="draw the steps and print all requests, submit nothing")
        command("status", "Show the steps and their jobs.")
        log = command("log", "Print the logs of one step, or of all in their order.")
        log.add_argument("step", metavar="STEP", nargs="?", help="the step; by default all that have a job")
        log.add_argument("-f", "--follow", action="store_true", help="wait for more until the step has ended")
        command("cancel", "Cancel the jobs that have not ended, the last steps first.")

    def run(self, args: argparse.Namespace) -> None:
        """Runs one of the commands."""
        logging.getLogger("torchx.runner").setLevel(logging.WARNING)  # it logs a line for each request
        find_own_first()
        with errors_in_one_line("torchx pipeline"):
            from torchx_recsys.pipelines import actions

            getattr(actions, args.action)(args)


def add_target(parser: argparse.ArgumentParser, options: str) -> None:
    """Adds the arguments for a scheduler, by default that of `torchx run`, and its options."""
    with errors_in_one_line():
        default = get_config("cli", "run", "scheduler") or "local_cwd"
    names = [*get_scheduler_factories()]
    parser.add_argument("-s", "--scheduler", default=default, choices=names, metavar="NAME", help=f"default: {default}")
    parser.add_argument("-cfg", "--scheduler_args", default="", metavar="KEY=VALUE,..", help=options)
