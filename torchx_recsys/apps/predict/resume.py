"""Resumes a job that writes parts, such as a prediction, after the job was killed or stopped.

`job.json` records everything that decides the contents of the parts. Each part is a whole file or none. A restarted job
compares its record with the record in the directory, and makes the missing parts. `manifest.json` comes last.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torchx_recsys.apps.predict.parts import MANIFEST, PartFiles, part_names
from trainer.checkpoint.choice import find_checkpoint
from trainer.checkpoint.store import MANIFEST as CHECKPOINT_MANIFEST
from trainer.checkpoint.store import Checkpoint, FindDamage
from trainer.core.console import next_commands, plural, python_command
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.errors import DamagedError, InputError
from trainer.core.outcome import FINISHED_WORD, STOPPED_WORD, write_outcome
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, read_text
from trainer.run.lock import locked
from trainer.run.preemption import Action, Stopped, StopRequests

FILE = "job.json"
KINDS = {"model": "model, tasks or features", "data": "files"}  # names of keys in messages
MAY_DIFFER = ("batch_size",)  # a job keeps the value of its first start
ON_STOP = (
    "the job stops after this step, and keeps the parts that are written",
    "the job ends at once; the same command continues it",
)
Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PartsJob:
    """The description of a job that writes parts.

    Attributes:
        directory: The directory of the parts.
        origin: What the parts are made from, in words.
        record: Everything that decides the contents of the parts.
        rows: Rows of all parts, or what their rows are of.
        names: Names of the columns in the parts; empty to keep the names of the tables.
        of: What `rows` counts. Unless a part has a row for each, it may have any number of rows.
    """

    directory: RunDirectory
    origin: str
    record: Record
    rows: int
    names: tuple[str, ...] = ()
    of: str = "row"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The rest of a job, in a directory that no other job writes to.

    Attributes:
        record: The record of the job, which may have started earlier.
        parts: The parts of the job.
        missing: Numbers of the parts to make.
        give_up: Called between two steps; returns whether to give up, the same on all ranks.
    """

    record: Record
    parts: PartFiles
    missing: list[int]
    give_up: Callable[[], bool]


def choose_checkpoint(directory: RunDirectory, out: str, choice: str, find: FindDamage) -> Checkpoint:
    """Returns the checkpoint to make parts from; a job that continues keeps its first checkpoint.

    Args:
        directory: The directory of the parts.
        out: The run directory.
        choice: newest, best, or the number of a step.
        find: Verifies files.

    Raises:
        InputError: There is no such checkpoint.
    """
    return find_checkpoint(RunDirectory(out), "--out", _find_earlier(directory).choice(choice), "--checkpoint", find)


def in_words(checkpoint: Checkpoint) -> str:
    """Returns the step and the run of a checkpoint."""
    return f"step {checkpoint.step:,} of {without_secrets(checkpoint.run_url)}"


def record_of_checkpoint(checkpoint: Checkpoint) -> Record:
    """Returns the entry of a record that names the checkpoint."""
    manifest = read_text(f"{checkpoint.url}/{CHECKPOINT_MANIFEST}")
    fingerprint = f"{zlib.crc32(manifest.encode()):08x}"
    return {"step": checkpoint.step, "fingerprint": fingerprint, "url": without_secrets(checkpoint.url)}


@contextmanager
def claimed(job: PartsJob, stop_requests: StopRequests, context: DistributedContext) -> Iterator[Claim]:
    """Holds the directory of a job while the block makes the missing parts, and then writes the manifest.

    Raises:
        InputError: The directory holds parts of another job, or cannot be written.
    """
    directory = job.directory
    with locked(directory, context):
        record, missing = broadcast_from_rank0(context, lambda: _begin(job))
        parts = PartFiles(directory, job.rows, record["rows_per_part"], job.names, job.of)
        if context.is_rank0:
            _announce(job, record, parts, len(missing), context)
        try:
            yield Claim(
                record=record,
                parts=parts,
                missing=missing,
                give_up=lambda: stop_requests.all_reduce() is Action.STOP,
            )
        except Stopped:
            if context.is_rank0:
                print("\nThe same command continues it.", flush=True)
                write_outcome(f"{STOPPED_WORD}, parts are in {without_secrets(directory.url)}")
            raise
        gather_to_all(None, context)  # every rank has written its parts
        if context.is_rank0:
            _finish(job, record, parts)


def _begin(job: PartsJob) -> tuple[Record, list[int]]:
    """Writes the record of a new job, or compares it with the record of the job that is continued.

    Returns:
        The record that counts, and the numbers of the parts to make.

    Raises:
        InputError: The directory holds parts of another job.
    """
    directory, record = job.directory, job.record
    earlier = _find_earlier(directory)  # read again: another job may have ended before this job took the lock
    if earlier.record:
        _check_same(directory, earlier.record, record)
        record = earlier.record
    with named(directory.key, directory.url):
        if not earlier.record:
            directory.write_json(FILE, record)
        missing = PartFiles(directory, job.rows, record["rows_per_part"], of=job.of).missing()
        if earlier.is_done and missing:
            directory.fs.rm_file(directory.path(MANIFEST))
    return record, missing


@dataclass(frozen=True)
class EarlierJob:
    """The earlier job of a directory.

    Attributes:
        record: The record of the job whose parts exist; None without parts.
        is_done: Whether all parts exist.
    """

    record: Record | None
    is_done: bool

    def choice(self, checkpoint: str) -> str:
        """Returns the checkpoint to take, as `newest` and `best` may have changed since the job began."""
        goes_on = self.record and not self.is_done and not checkpoint.isdigit()
        return str(self.record["checkpoint"]["step"]) if self.record and goes_on else checkpoint


def _find_earlier(directory: RunDirectory) -> EarlierJob:
    """Returns the job whose parts a directory holds.

    Raises:
        InputError: There are parts without a record, or the directory cannot be used.
    """
    with named(directory.key, directory.url):
        if not (names := part_names(directory)):
            _refuse_others(directory)
            return EarlierJob(None, False)  # any job may replace a job without parts
        record, is_done = directory.read_json(FILE), directory.read_bytes(MANIFEST) is not None
        if record and not _is_record(record):
            raise directory.damaged(FILE, why="it lacks a key")
    if not record:
        raise InputError(
            f"{directory.key} is '{without_secrets(directory.url)}', which holds {names[0]} but no {FILE}; name an "
            "empty directory"
        )
    return EarlierJob(record, is_done)


def _refuse_others(directory: RunDirectory) -> None:
    """Refuses a directory where another program, such as export, has a file of the same name."""
    try:
        is_ours = _is_record(directory.read_json(FILE) or {})
    except DamagedError:
        is_ours = False
    names = [MANIFEST, *([] if is_ours else [FILE])]
    of_others = [name for name in names if directory.read_bytes(name)]
    for name in of_others:
        raise InputError(
            f"{directory.key} is '{without_secrets(directory.url)}', which holds a {name} of something else; name an "
            "empty directory"
        )


def _is_record(content: Record) -> bool:
    checkpoint = content.get("checkpoint")
    return "rows_per_part" in content and (checkpoint is None or {"step", "fingerprint"} <= {*checkpoint})


def _check_same(directory: RunDirectory, saved: Record, now: Record) -> None:
    """Refuses a job that would not continue the saved one."""
    for key in sorted(saved.keys() | now.keys()):
        before, after = (_without_url(record.get(key)) for record in (saved, now))
        if before != after and key not in MAY_DIFFER:
            raise InputError(
                f"{directory.key} is '{without_secrets(directory.url)}', which holds parts of a job with other "
                f"{KINDS.get(key, key)} ({_shown(before)}, now {_shown(after)}); name another directory"
            )


def _without_url(value: Any) -> Any:
    """Returns an entry of a record without its URL, because a run directory may move."""
    return {name: one for name, one in value.items() if name != "url"} if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    return json.dumps(value).replace('"', "")


def _announce(job: PartsJob, record: Record, parts: PartFiles, missing: int, context: DistributedContext) -> None:
    at_once = f", rows at once: {record['batch_size']:,}" if "batch_size" in record else ""
    print(
        f"{job.origin}: {plural(job.rows, job.of)} in {parts}, {len(parts.parts) - missing:,} of which are there; "
        f"ranks: {context.world_size}{at_once}",
        flush=True,
    )
    if not missing:
        print("nothing is left to do")


def _finish(job: PartsJob, record: Record, parts: PartFiles) -> None:
    """Writes the manifest, and prints the place of the parts and how to read them."""
    directory, made = job.directory, f"{plural(job.rows, job.of)} in {parts}"
    with named(directory.key, directory.url):
        parts.commit(record)
    print(f"{made} in {without_secrets(directory.url)}")
    load = "from pyarrow.dataset import dataset; print(dataset({}, exclude_invalid_files=True).head(5))"
    print(f"\n{next_commands(python_command(load, directory.url))}")
    write_outcome(f"{FINISHED_WORD}: {made}")
