"""The command `torchx fetch`: a run of a job on a host, without its checkpoints, to look at here."""

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchx.cli.cmd_base import SubCommand
from torchx.runner import get_runner
from torchx.specs import parse_app_handle

from components.cli.base import errors_in_one_line, require_job
from components.cli.jobs import progress, scheduler_of
from schedulers.errors import SchedulerError

CHECKPOINTS = "checkpoints"
RUN_PAGE = "run.html"
# Names the run in a directory that was fetched: no other one is replaced.
FROM = ".torchx-fetched"


class Fetch(SubCommand):
    """Copies the run directory of a job on a host, again each time it is called."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds the job, and where its run goes."""
        subparser.add_argument("app_handle", metavar="HANDLE", help="the job, as `torchx run` printed it")
        subparser.add_argument("--to", metavar="DIR", help="where its run goes; by default runs/NAME")

    def run(self, args: argparse.Namespace) -> None:
        """Fetches the run, and says what to look at."""
        handle = args.app_handle
        with errors_in_one_line("torchx fetch"):
            with get_runner() as runner:
                require_job(runner, handle, "torchx fetch")
            place = run_directory_of(handle)
            backend, session, app_id = parse_app_handle(handle)
            to = Path(args.to or Path("runs", Path(place).name))
            origin = f"{backend}://{session}/{app_id.rpartition(':')[0]}:{place}"
            with claimed(to, origin):
                scheduler_of(backend, session).fetch(app_id, place, str(to), CHECKPOINTS)  # pyrefly: ignore[missing-attribute]
            print(f"{place} is in {to}, without its {CHECKPOINTS}")
            print(f"next:\n  {shlex.join(['python', '-m', 'trainer', 'tensorboard', '--logdir', str(to)])}")
            if (to / RUN_PAGE).exists():
                print(f"  open {to / RUN_PAGE} in a browser")


def run_directory_of(handle: str) -> str:
    """Returns the run directory of a job, on the job's own machines.

    Raises:
        SchedulerError: It is not known, or can be read from here as it is.
    """
    backend, session, _ = parse_app_handle(handle)
    training = progress(handle)
    place = training.run_directory if training else ""
    if "://" in place:
        raise SchedulerError(f"{handle}: its run is {place}, which is read here as it is")
    if not hasattr(scheduler_of(backend, session), "fetch"):
        where = f", {place}" if place else ""
        raise SchedulerError(f"{handle}: only of Slurm over SSH can a run be fetched{where}")
    if not place:
        raise SchedulerError(
            f"{handle}: no run to fetch: the job has not begun to train, trains nothing, or is an array, of"
            " which a task has a run, HANDLE_0"
        )
    return place


@contextmanager
def claimed(to: Path, origin: str) -> Iterator[None]:
    """Notes whose copy a directory is before any of it is there, so that a copy that is cut short can be continued.

    Raises:
        SchedulerError: The directory holds anything but an earlier copy of the run.
    """
    note = to / FROM
    is_new = not to.exists()
    is_copy = note.exists() and note.read_text().strip() == origin
    if not (is_new or is_copy or (to.is_dir() and not any(to.iterdir()))):
        raise SchedulerError(f"--to {to}: exists, and is no copy of {origin}: name another directory")
    to.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{origin}\n")
    try:
        yield
    finally:
        if not is_copy and [*to.iterdir()] == [note]:  # nothing came
            note.unlink()
            if is_new:
                to.rmdir()
