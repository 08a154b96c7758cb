"""The command `torchx tracker`: TorchX's own, which reads the jobs submitted here where no tracker is configured."""

import argparse
from typing import Any

from tabulate import tabulate
from torchx.cli.cmd_tracker import CmdTracker
from torchx.runner.api import get_configured_trackers
from torchx.tracker.api import TrackerBase, build_trackers

from components.cli.base import errors_in_one_line
from components.cli.defaults import DefaultsError
from schedulers.job_records import TRACKER


class Tracker(CmdTracker):
    """TorchX's own `tracker`, with a tracker of its own, with lineage, and with one line instead of a traceback."""

    @property
    def tracker(self) -> TrackerBase:
        """The tracker that .torchxconfig configures first; else that of the jobs submitted here.

        Raises:
            DefaultsError: No tracker can be made from the configuration.
        """
        configured = get_configured_trackers() or {TRACKER: None}
        try:
            return next(iter(build_trackers(configured)))
        except (StopIteration, RuntimeError, ImportError, AssertionError) as error:
            raise DefaultsError(
                f"tracker {', '.join(configured)}: cannot be used: {error or 'is its config there?'}"
            ) from error

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds TorchX's own arguments, and those of `list lineage`, which TorchX refuses."""
        super().add_arguments(subparser)
        lineage = _command(_command(subparser, "list"), "lineage")
        lineage.add_argument("RUN_ID", type=str, help="Job run ID")
        lineage.set_defaults(func=self.list_lineage_command)

    def list_jobs_command(self, args: argparse.Namespace) -> None:
        """Prints the jobs."""
        with errors_in_one_line("torchx tracker"):
            super().list_jobs_command(args)

    def list_metadata_command(self, args: argparse.Namespace) -> None:
        """Prints the metadata of a job."""
        with errors_in_one_line("torchx tracker"):
            self._require(args.RUN_ID)
            super().list_metadata_command(args)

    def list_artifacts_command(self, args: argparse.Namespace) -> None:
        """Prints the artifacts of a job."""
        with errors_in_one_line("torchx tracker"):
            self._require(args.RUN_ID)
            super().list_artifacts_command(args)

    def list_lineage_command(self, args: argparse.Namespace) -> None:
        """Prints where a job comes from, and which jobs come from it."""
        with errors_in_one_line("torchx tracker"):
            self._require(args.RUN_ID)
            tracker = self.tracker
            rows = [["from", one.source_run_id, one.artifact_name] for one in tracker.sources(args.RUN_ID)]
            rows += [["to", run_id, None] for run_id in tracker.run_ids(parent_run_id=args.RUN_ID)]
            print(tabulate(rows, headers=["", "RUN ID", "BY"]))

    def _require(self, run_id: str) -> None:
        if run_id not in self.tracker.run_ids():
            raise DefaultsError(f"no such run: {run_id}; `torchx tracker list jobs` lists them")


def _command(parser: argparse.ArgumentParser, name: str) -> Any:
    """Returns the parser of a subcommand."""
    groups = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(group.choices[name] for group in groups)
