"""Writes the directory of an export: files, then the manifest that commits them, then current.json.

Only one command at a time writes to a directory of exports; others wait for it, and then read the directory again.
"""

import json
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torchx_recsys.apps.export.load import CHANGES, Export, chain_of, export_in
from trainer.checkpoint.store import READ_BYTES, FileEntry, add_to, entry_of, find_damage
from trainer.core.errors import DamagedError, InputError
from trainer.core.run_directory import RunDirectory, pass_over
from trainer.core.secrets import without_secrets
from trainer.core.storage import PARTIAL, Storage, named
from trainer.run.lock import RunLock

MANIFEST, CURRENT = "manifest.json", "current.json"
NAME = re.compile(r"step-\d+")  # name of the directory of an export
LOCK = "exports.lock.json"  # not lock.json, as a run directory may hold its exports
SHARDS = "tables"  # folder for tables in separate files
WEIGHTS = ("model.pt2", "compiled.pt2", CHANGES)


@contextmanager
def alone_in(target: RunDirectory) -> Iterator[RunLock]:
    """Locks a directory of exports, and waits while another command holds the lock.

    Raises:
        InputError: The directory cannot be written.
    """
    lock = RunLock(target, file=LOCK, waits=True)
    lock.take()
    try:
        yield lock
    finally:
        lock.release()


def is_there(to: str, name: str, fingerprint: str) -> bool:
    """Returns whether a directory already holds this export, whole; if so, points current.json there.

    Args:
        to: Any fsspec URL.
        name: The name of the directory.
        fingerprint: Identifies the export.

    Raises:
        InputError: The directory holds another export of that name or a damaged one, or cannot be read.
    """
    target = RunDirectory(to, "--to")
    with named("--to", to):
        current_or_none(target)
        if not _holds(target, name, fingerprint):
            return False
        with alone_in(target):
            target.write_json(CURRENT, {"directory": name})
        return True


def _holds(target: RunDirectory, name: str, fingerprint: str) -> bool:
    """Returns whether a directory holds the same whole export; raises the errors of `is_there`."""
    if target.read_bytes(name, MANIFEST) is None:
        return False
    reason = "made of another checkpoint or configuration, or with other flags"
    try:
        is_same = (target.read_json(name, MANIFEST) or {}).get("fingerprint") == fingerprint
        reason = _damage(target.fs, target.path(name)) if is_same else reason
    except DamagedError as error:
        reason = str(error)
    if reason:
        url = without_secrets(target.url)
        raise InputError(
            f"--to is '{url}', which holds {name} already: {reason}; name another directory, or delete that"
        )
    return True


def read_current(target: RunDirectory) -> str | None:
    """Returns the name of the export that current.json names; None if nothing is exported.

    Raises:
        InputError: The file belongs to something else.
        DamagedError: The file is damaged.
    """
    content = target.read(CURRENT)
    if content is None:
        return None
    try:
        current = json.loads(content)
    except ValueError as error:
        raise target.damaged(CURRENT, why=error) from error
    if not isinstance(current, dict) or "directory" not in current:
        raise InputError(
            f"{target.key} is '{without_secrets(target.url)}', whose {CURRENT} is of something else, or damaged; name "
            "another directory, or delete that file"
        )
    if not isinstance(current["directory"], str) or not NAME.fullmatch(current["directory"]):
        raise target.damaged(CURRENT, why=f"it names {current['directory']!r}")
    return current["directory"]


def current_or_none(target: RunDirectory) -> str | None:
    """Like `read_current`, for callers that rewrite current.json: None, with a warning, if it is damaged."""
    try:
        return read_current(target)
    except DamagedError as error:
        pass_over(error)
        return None


def _damage(fs: Storage, directory: str) -> str | None:
    """Returns the first damage found in the chain of an export; empty if it is whole."""
    try:
        chain = read_chain(fs, directory)
    except ValueError as error:
        return str(error)
    for export in reversed(chain):
        if damage := find_damage(fs, export.directory, export.files):
            return damage if export is chain[-1] else f"{posixpath.basename(export.directory)}/{damage}"
    return None


def read_export(fs: Storage, directory: str) -> Export:
    """Returns the export in a directory, a path on a storage.

    Raises:
        ValueError: The manifest is missing.
    """
    return export_in(directory, partial(_read_manifest, fs))


def read_chain(fs: Storage, directory: str) -> list[Export]:
    """Returns the exports that make up the export in a directory, the whole one first.

    Raises:
        ValueError: A manifest is missing, or belongs to another export.
    """
    return chain_of(directory, partial(_read_manifest, fs))


def _read_manifest(fs: Storage, directory: str) -> bytes:
    return fs.cat_file(posixpath.join(directory, MANIFEST))


def bring(fs: Storage, export: Export, folder: Path) -> Path:
    """Makes an export available in a local folder under its own name: as a link, or as a copy of its files.

    Args:
        fs: Where the export is.
        export: The export.
        folder: The folder.

    Returns:
        The directory of the export there.
    """
    here = folder / posixpath.basename(export.directory)
    if fs.is_local:
        here.symlink_to(export.directory)
        return here
    for name in (*export.files, MANIFEST):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        fs.get_file(posixpath.join(export.directory, name), str(here / name))
    return here


def files_of(folder: Path) -> list[str]:
    """Returns the names of all files below a local folder, the manifest last."""
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    return sorted(names, key=lambda name: (name == MANIFEST, name))


def entries_of(folder: Path, known: dict[str, FileEntry]) -> dict[str, FileEntry]:
    """Returns size and checksum of every file in a local folder but the manifest; takes those in `known`."""
    found = {}
    for name in files_of(folder):
        if name == MANIFEST:
            continue
        if name in known:
            found[name] = known[name]
            continue
        file, entry = folder / name, entry_of(b"")
        with file.open("rb") as stream:
            while block := stream.read(READ_BYTES):
                add_to(entry, block)
        found[name] = entry
    return found


def publish(folder: Path, to: str, name: str, before: str | None) -> str:
    """Copies the files of a local folder into `to/name`, the manifest last, then points current.json there.

    If another command has published the same export meanwhile, that export stays. The newer of two steps is current.

    Args:
        folder: The folder.
        to: Any fsspec URL.
        name: Name of the directory.
        before: What `current_or_none` returned when the command began.

    Returns:
        The URL of the directory.

    Raises:
        InputError: The directory cannot be written, or now holds another export of that name.
    """
    target = RunDirectory(to, "--to")
    fingerprint = json.loads((folder / MANIFEST).read_text())["fingerprint"]
    with named("--to", to), alone_in(target) as lock:
        if not _holds(target, name, fingerprint):
            _copy(folder, target, name, lock)
        now = current_or_none(target)
        if now not in (None, before) and _step_of(now) > _step_of(name):
            print(f"{now} was published meanwhile, and stays the current one")
        else:
            lock.check()
            target.write_json(CURRENT, {"directory": name})
    return posixpath.join(target.url, name)


def _copy(folder: Path, target: RunDirectory, name: str, lock: RunLock) -> None:
    names = files_of(folder)
    _remove_interrupted(target, name, names)
    for file_name in names:
        file, path = folder / file_name, target.path(name, file_name)
        target.fs.makedirs(posixpath.dirname(path))
        if file_name == MANIFEST:
            lock.check()
            target.fs.write(path, file.read_bytes())
        else:
            with file.open("rb") as source, target.fs.durable(path) as sink:
                while block := source.read(READ_BYTES):
                    sink.write(block)


def _step_of(name: str | None) -> int:
    return int(str(name).removeprefix("step-"))


def _remove_interrupted(target: RunDirectory, name: str, kept: list[str]) -> None:
    """Removes the remains of an interrupted export: partial files, and the weights of another format."""
    for path in target.fs.find(target.path(name)):
        file = posixpath.relpath(path, target.path(name))
        is_shard = file.startswith(f"{SHARDS}/") and file.endswith(".bin")
        if file not in kept and (file in WEIGHTS or is_shard or file.endswith(PARTIAL)):
            target.fs.rm_file(path)


def write_manifest(
    folder: Path, fingerprint: str, known: dict[str, FileEntry], predecessor: Export | None = None
) -> None:
    """Writes the manifest of a local folder's files; sizes and checksums may be known.

    Args:
        folder: The folder.
        fingerprint: Identifies the export.
        known: Entries of files, by name.
        predecessor: The export that the files change.
    """
    manifest: dict[str, Any] = {"version": 1, "fingerprint": fingerprint, "files": entries_of(folder, known)}
    if predecessor:
        name = posixpath.basename(predecessor.directory)
        manifest["predecessor"] = {"directory": name, "crc32": predecessor.crc32}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
