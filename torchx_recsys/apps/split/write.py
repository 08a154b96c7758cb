"""Writes splits as a directory of Parquet files that is whole or not there."""

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.database import text
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import PARTIAL, Storage, named, open_storage

ROW_GROUP_ROWS = 65_536  # as in other data sets: the default size of a shuffle window
SUMMARY = "summary.json"
LAST_FIRST = ("test", "validation", "items.parquet", "train", SUMMARY)
"""The order in which files reach an object store. Without train, nothing takes the data set for whole."""


def refuse_other_files(out: str, overwrite: bool, mark: str = SUMMARY, what: str = "data set") -> None:
    """Refuses to replace a data set without `--overwrite`, and anything else in any case.

    Args:
        out: The directory to write.
        overwrite: Whether a data set may be replaced.
        mark: The file that marks one.
        what: What it is, for messages.

    Raises:
        InputError: There are files that may not be replaced, or the storage cannot be used.
    """
    if not out:
        raise InputError("--out is empty; name a directory, any fsspec URL")
    with named("--out", out):
        fs, path = open_storage(out)
        fs.refuse_read_only()
        is_file, there = fs.isfile(path), fs.exists(path) and bool(fs.ls(path, detail=False))
        is_ours = there and not is_file and fs.exists(f"{path}/{mark}")
    if is_file:
        raise InputError(f"--out is '{without_secrets(out)}', a file; name a directory")
    if there and not is_ours:
        raise InputError(
            f"--out is '{without_secrets(out)}', which holds files but no {mark}; name an empty directory or a new one"
        )
    if there and not overwrite:
        raise InputError(
            f"--out would replace the {what} in '{without_secrets(out)}'; name another directory, or add --overwrite"
        )


@contextmanager
def staged(out: str, folder: Path, order: Sequence[str] = LAST_FIRST) -> Iterator[Path]:
    """Yields a local directory whose files are those of `out` once the block ends without an error.

    Args:
        out: The directory to write, on any fsspec URL.
        folder: A local directory for what is written elsewhere afterwards.
        order: The files and directories in the order in which they reach an object store; others come first.
    """
    with named("--out", out):
        fs, path = open_storage(out)
        path = path.rstrip("/")
        parent, _, own = path.rpartition("/")
        # Beside the directory, so that it can be renamed.
        stage = Path(parent or "/") / f".{own}.{uuid.uuid4().hex[:8]}{PARTIAL}" if fs.is_local else folder / "out"
        stage.mkdir(parents=True)
    try:
        yield stage
        with named("--out", out):
            _rename(stage, Path(path)) if fs.is_local else _upload(stage, fs, path, order)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _rename(stage: Path, path: Path) -> None:
    if path.exists():
        old = stage.with_suffix(".old")
        path.rename(old)
        stage.rename(path)
        shutil.rmtree(old)
    else:
        stage.rename(path)


def _upload(stage: Path, fs: Storage, path: str, order: Sequence[str]) -> None:
    if fs.exists(path):
        fs.rm(path, recursive=True)
    names = sorted(file.relative_to(stage) for file in stage.rglob("*") if file.is_file())
    for name in sorted(names, key=lambda one: order.index(one.parts[0]) if one.parts[0] in order else -1):
        target = f"{path}/{name}"
        fs.makedirs(target.rpartition("/")[0])
        fs.upload(str(stage / name), target)


def write_parquet(database: Database, query: str, file: Path) -> None:
    """Writes the rows of a query, in its order, to a Parquet file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP_ROWS}"
    database.run(f"COPY ({query}) TO {text(str(file))} ({options})")


def write_summary(summary: Mapping[str, Any], stage: Path) -> None:
    """Writes `summary.json`, which marks the data set as complete."""
    (stage / SUMMARY).write_text(json.dumps(summary, indent=2, default=str) + "\n")
