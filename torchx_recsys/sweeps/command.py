"""The command line of `torchx sweep`. TorchX imports this file for each of its commands, so it imports little."""

import argparse
import logging

from torchx.cli.cmd_base import SubCommand

from components.cli.base import errors_in_one_line
from torchx_recsys.pipelines.command import add_target
from trainer.core.errors import InputError
from trainer.core.own_modules import find_own_first

TUNE = "Search for a better configuration than one's own: rates, decay, dropout, dimensions. Again: it goes on."


class SweepCommand(SubCommand):
    """Tries values of a configuration as jobs, and finds the best."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds the four commands."""
        commands = subparser.add_subparsers(metavar="COMMAND", required=True)

        def command(name: str, text: str) -> argparse.ArgumentParser:
            added = commands.add_parser(name, help=text, description=text)
            added.add_argument("file", metavar="FILE", help="sweep file")
            added.set_defaults(action=name)
            return added

        run = command("run", "Run trials until the budget is used up; a sweep that was killed goes on.")
        add_target(run, "options for all trials")
        run.add_argument("--dryrun", action="store_true", help="print the request of a first trial, submit nothing")
        _add_tune(commands.add_parser("tune", help=TUNE, description=TUNE))
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


def _add_tune(tune: argparse.ArgumentParser) -> None:
    tune.add_argument("config", metavar="CONFIG", help="configuration file (TOML), or the name of a ready-made one")
    tune.add_argument("--out", required=True, help="directory of the search: sweep.toml, trials, best.toml")
    tune.add_argument("--component", default="dlrm.single_node", help="component that trains: dlrm.single_node")
    tune.add_argument("--aim", help="metric to improve, METRIC/TASK with several tasks; default: checkpoint.keep.best")
    tune.add_argument("--trials", type=int, default=20, help="most trials (default: 20)")
    tune.add_argument("--at_once", type=int, default=2, help="most trials at the same time (default: 2)")
    tune.add_argument("--hours", type=float, help="hours after which no trial begins")
    tune.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="another value than the configuration's, for all trials, repeatable",
    )
    add_target(tune, "options for all trials")
    tune.set_defaults(action="tune", dryrun=False)
