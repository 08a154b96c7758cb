"""The directory of a job that writes parts: held while the missing ones are made, and committed at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from apps.predict.part_files import PartFiles
from apps.predict.record import Record, begin, find_earlier
from trainer.checkpoint.choice import find_checkpoint
from trainer.checkpoint.store import Checkpoint
from trainer.core.console import next_commands, plural, python_command
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.outcome import FINISHED_WORD, STOPPED_WORD, write_outcome
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named
from trainer.run.lock import locked
from trainer.run.preemption import Request, Stopped, StopRequests

WORDS = (
    "the job stops after this step, and keeps the parts that are written",
    "the job ends at once; the same command continues it",
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that writes parts, before anything of it is written.

    Attributes:
        directory: Where the parts go.
        checkpoint: The checkpoint that they are made from.
        record: What decides their contents.
        rows: Rows of all parts.
        names: Names of the columns in the parts; empty for those that they have already.
    """

    directory: RunDirectory
    checkpoint: Checkpoint
    record: Record
    rows: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is left of a job, in a directory that no other job writes to.

    Attributes:
        record: The record of the job, which may have begun earlier.
        parts: Its parts.
        missing: Numbers of the parts to make.
        give_up: Called between two steps; returns whether to give up, the same on all ranks.
    """

    record: Record
    parts: PartFiles
    missing: list[int]
    give_up: Callable[[], bool]


def choose_checkpoint(directory: RunDirectory, out: str, choice: str) -> Checkpoint:
    """Returns the checkpoint to make parts from: a job that continues keeps that which it began with.

    Raises:
        InputError: There is none.
    """
    return find_checkpoint(RunDirectory(out), "--out", find_earlier(directory).choice(choice), "--checkpoint")


@contextmanager
def claimed(job: Job, stop_requests: StopRequests, context: DistributedContext) -> Iterator[Claim]:
    """Holds the directory of a job while the block makes the missing parts, and then writes the manifest.

    Raises:
        InputError: The directory holds parts of another job, or cannot be written.
    """
    directory = job.directory
    with locked(directory, context):
        record, missing = broadcast_from_rank0(context, lambda: begin(directory, job.record, job.rows))
        parts = PartFiles(directory, job.rows, record["rows_per_part"], job.names)
        if context.is_rank0:
            _announce(job, record, parts, len(missing), context)
        try:
            yield Claim(
                record=record,
                parts=parts,
                missing=missing,
                give_up=lambda: stop_requests.all_reduce() is Request.STOP,
            )
        except Stopped:
            if context.is_rank0:
                print("\nThe same command continues it.", flush=True)
                write_outcome(f"{STOPPED_WORD}, parts are in {without_secrets(directory.url)}")
            raise
        gather_to_all(None, context)  # every rank has written its parts
        if context.is_rank0:
            _finish(directory, record, parts)


def _announce(job: Job, record: Record, parts: PartFiles, missing: int, context: DistributedContext) -> None:
    at_once = f", rows at once: {record['batch_size']:,}" if "batch_size" in record else ""
    print(
        f"step {job.checkpoint.step:,} of {without_secrets(job.checkpoint.run_url)}: "
        f"{plural(job.rows, 'row')} in {parts}, {len(parts.parts) - missing:,} of which are there; "
        f"ranks: {context.world_size}{at_once}",
        flush=True,
    )
    if not missing:
        print("nothing is left to do")


def _finish(directory: RunDirectory, record: Record, parts: PartFiles) -> None:
    """Writes the manifest, and prints where the parts are and how they are read."""
    with named(directory.key, directory.url):
        parts.commit(record)
    rows = parts.parts[-1][1]
    print(f"{plural(rows, 'row')} in {parts} in {without_secrets(directory.url)}")
    load = "from pyarrow.dataset import dataset; print(dataset({}, exclude_invalid_files=True).head(5))"
    print(f"\n{next_commands(python_command(load, directory.url))}")
    write_outcome(f"{FINISHED_WORD}: {plural(rows, 'row')} in {parts}")
