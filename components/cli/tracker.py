"""The command `torchx tracker`, which explains in one line that no tracker is configured."""

import argparse

from torchx.cli.cmd_tracker import CmdTracker
from torchx.runner.api import get_configured_trackers
from torchx.tracker.api import TrackerBase

from components.cli.base import errors_in_one_line
from components.cli.defaults import DefaultsError

CONFIGURED = "a line `fsspec =` in [torchx:tracker], and `config = DIRECTORY` in [tracker:fsspec], of .torchxconfig"


class Tracker(CmdTracker):
    """TorchX's own `tracker`, with one line instead of a traceback."""

    @property
    def tracker(self) -> TrackerBase:
        """The tracker that is configured first.

        Raises:
            DefaultsError: No tracker known to TorchX is configured.
        """
        if not (configured := get_configured_trackers()):
            raise DefaultsError(f"no tracker is configured: {CONFIGURED}")
        try:
            return super().tracker
        except (RuntimeError, ImportError, AssertionError) as error:
            raise DefaultsError(
                f"tracker {', '.join(configured)}: cannot be used: {error or 'is its config there?'}"
            ) from error

    def list_jobs_command(self, args: argparse.Namespace) -> None:
        """Prints the jobs."""
        with errors_in_one_line("torchx tracker"):
            super().list_jobs_command(args)

    def list_metadata_command(self, args: argparse.Namespace) -> None:
        """Prints the metadata of a job."""
        with errors_in_one_line("torchx tracker"):
            super().list_metadata_command(args)

    def list_artifacts_command(self, args: argparse.Namespace) -> None:
        """Prints the artifacts of a job."""
        with errors_in_one_line("torchx tracker"):
            super().list_artifacts_command(args)
