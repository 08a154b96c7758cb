"""The record of a job, `job.json`: what decides the contents of its parts."""

import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from apps.predict.arguments import Arguments
from apps.predict.part_files import MANIFEST, PartFiles, part_names
from trainer.checkpoint.store import MANIFEST as CHECKPOINT_MANIFEST
from trainer.checkpoint.store import Checkpoint
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, read_text
from trainer.data.dataset import FileSet
from trainer.models.outputs import ModelOutput

FILE = "job.json"
WORDS = {"model": "model, tasks or features", "data": "files"}
MAY_DIFFER = ("batch_size",)  # a job keeps that of its first start
Record = dict[str, Any]


@dataclass(frozen=True)
class EarlierJob:
    """What a directory holds.

    Attributes:
        record: The record of the job whose parts are there; None if there are no parts.
        is_done: Whether all of them are.
    """

    record: Record | None
    is_done: bool

    def choice(self, checkpoint: str) -> str:
        """Returns the checkpoint that a job takes: one that continues has begun with another newest or best one."""
        goes_on = self.record and not self.is_done and not checkpoint.isdigit()
        return str(self.record["checkpoint"]["step"]) if self.record and goes_on else checkpoint


def find_earlier(directory: RunDirectory) -> EarlierJob:
    """Returns the job whose parts are in a directory.

    Raises:
        InputError: There are parts without a record, or the directory cannot be used.
    """
    with named(directory.key, directory.url):
        if not (names := part_names(directory)):
            _refuse_others(directory)
            return EarlierJob(None, False)  # a job that wrote none can be replaced by any other
        text, is_done = directory.read(FILE), directory.read(MANIFEST) is not None
    if not text:
        raise InputError(
            f"{directory.key} is '{without_secrets(directory.url)}', which holds {names[0]} but no {FILE}; name an "
            "empty directory"
        )
    return EarlierJob(json.loads(text), is_done)


def _refuse_others(directory: RunDirectory) -> None:
    """Refuses a directory whose files of a job's names are of something else, such as an export."""
    text = directory.read(FILE)
    of_others = [MANIFEST] if directory.read(MANIFEST) is not None else [FILE] if text and not _is_record(text) else []
    for name in of_others:
        raise InputError(
            f"{directory.key} is '{without_secrets(directory.url)}', which holds a {name} of something else; name an "
            "empty directory"
        )


def _is_record(text: str) -> bool:
    try:
        return "rows_per_part" in json.loads(text)
    except (ValueError, TypeError):
        return False


def begin(directory: RunDirectory, record: Record, rows: int) -> tuple[Record, list[int]]:
    """Writes the record of a new job, or compares it with that of the job to continue.

    Args:
        directory: Where the parts are.
        record: The record of this job.
        rows: Rows of all parts.

    Returns:
        The record that counts, and the numbers of the parts to make.

    Raises:
        InputError: The directory holds parts of another job.
    """
    earlier = find_earlier(directory)  # again: another job can have ended until this one had the lock
    if earlier.record:
        _check(directory, earlier.record, record)
        record = earlier.record
    with named(directory.key, directory.url):
        if not earlier.record:
            directory.write_json(FILE, record, durable=True)
        missing = PartFiles(directory, rows, record["rows_per_part"]).missing()
        if earlier.is_done and missing:
            directory.fs.rm_file(directory.path(MANIFEST))
    return record, missing


def of_checkpoint(checkpoint: Checkpoint) -> Record:
    """Returns the part of a record that is about the checkpoint."""
    manifest = read_text(f"{checkpoint.url}/{CHECKPOINT_MANIFEST}")
    fingerprint = f"{zlib.crc32(manifest.encode()):08x}"
    return {"step": checkpoint.step, "fingerprint": fingerprint, "url": without_secrets(checkpoint.url)}


def make_record(
    config: Config,
    arguments: Arguments,
    checkpoint: Checkpoint,
    files: FileSet,
    kept: pa.Schema,
    outputs: list[ModelOutput],
) -> Record:
    """Returns the record of a job."""
    return {
        "checkpoint": of_checkpoint(checkpoint),
        "model": _fingerprint(config),
        "data": {"fingerprint": files.fingerprint, "files": len(files.files), "rows": files.rows},
        "rows_per_part": arguments.rows_per_part,
        "batch_size": arguments.batch_size,
        "kept_columns": kept.names,
        "outputs": [output.name for output in outputs],
    }


def _check(directory: RunDirectory, saved: Record, now: Record) -> None:
    """Refuses a job that would not continue the saved one."""
    for key in sorted(saved.keys() | now.keys()):
        before, after = (_without_url(record.get(key)) for record in (saved, now))
        if before != after and key not in MAY_DIFFER:
            raise InputError(
                f"{directory.key} is '{without_secrets(directory.url)}', which holds parts of a job with other "
                f"{WORDS.get(key, key)} ({_shown(before)}, now {_shown(after)}); name another directory"
            )


def _without_url(value: Any) -> Any:
    """A run directory may move."""
    return {name: one for name, one in value.items() if name != "url"} if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    return json.dumps(value).replace('"', "")


def _fingerprint(config: Config) -> str:
    """Changes with what a model computes from its weights and a row."""
    tasks = {name: (task.prediction, task.output, task.loss) for name, task in config.named_tasks().items()}
    about = (config.data.rules(), config.model.model_dump(mode="json"), tasks)
    evaluated = config.optimizer.ema.model_dump(mode="json")
    text = json.dumps([about, evaluated, config.train.precision], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
