"""The directory of an export: files first, the manifest that commits them, then current.json."""

import json
import posixpath
from pathlib import Path

from trainer.checkpoint.store import READ_BYTES, FileEntry, add_to, entry_of, find_damage
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named

MANIFEST, CURRENT = "manifest.json", "current.json"
SHARDS = "tables"  # the folder of tables in separate files


def is_there(to: str, name: str, fingerprint: str) -> bool:
    """Returns whether a directory holds the same whole export; if so, points current.json there.

    Args:
        to: Any fsspec URL.
        name: The name of the directory.
        fingerprint: Identifies the export.

    Raises:
        InputError: The directory holds another export of that name or a damaged one, or cannot be read.
    """
    target = RunDirectory(to, "--to")
    with named("--to", to):
        current = target.read(CURRENT)
        if current is not None and '"directory"' not in current:
            raise InputError(f"--to is '{to}', whose {CURRENT} is of something else; name another directory")
        written = target.read(name, MANIFEST)
        if written is None:
            return False
        manifest = json.loads(written)
        reason = "made of another checkpoint or configuration, or with other flags"
        if manifest.get("fingerprint") == fingerprint:
            reason = find_damage(target.fs, target.path(name), manifest["files"])
        if reason:
            raise InputError(
                f"--to is '{to}', which holds {name} already: {reason}; name another directory, or delete that"
            )
        target.write_json(CURRENT, {"directory": name}, durable=True)
        return True


def files_of(folder: Path) -> list[str]:
    """Returns the names of all files in and below a local folder, the manifest last."""
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


def publish(folder: Path, to: str, name: str) -> str:
    """Copies the files of a local folder into `to/name`, the manifest last, then points current.json there.

    Args:
        folder: The folder.
        to: Any fsspec URL.
        name: Name of the directory.

    Returns:
        The URL of the directory.

    Raises:
        InputError: The directory cannot be written.
    """
    target, names = RunDirectory(to, "--to"), files_of(folder)
    with named("--to", to):
        _remove_other_tables(target, name, names)
        for file_name in names:
            file, path = folder / file_name, target.path(name, file_name)
            target.fs.makedirs(posixpath.dirname(path))
            if file_name == MANIFEST:
                target.fs.write(path, file.read_bytes(), durable=True)
            else:
                with file.open("rb") as source, target.fs.durable(path) as sink:
                    while block := source.read(READ_BYTES):
                        sink.write(block)
        target.write_json(CURRENT, {"directory": name}, durable=True)
    return posixpath.join(target.url, name)


def _remove_other_tables(target: RunDirectory, name: str, kept: list[str]) -> None:
    """Removes the table files of an interrupted export with another --shard-bytes."""
    for path in target.fs.find(target.path(name, SHARDS)):
        if path.endswith(".bin") and posixpath.relpath(path, target.path(name)) not in kept:
            target.fs.rm_file(path)


def write_manifest(folder: Path, fingerprint: str, known: dict[str, FileEntry]) -> None:
    """Writes the manifest of a local folder's files; sizes and checksums may be known."""
    manifest = {"version": 1, "fingerprint": fingerprint, "files": entries_of(folder, known)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
