"""Sizes and checksums of a checkpoint's files."""

import posixpath
import zlib
from typing import Any

from trainer.core.console import plural
from trainer.core.storage import Storage, os_errors

FileEntry = dict[str, int]
"""`bytes` and `crc32` of one file."""

# CRC-32 against files that were cut or changed by accident, not against forgery. zlib's lets other threads run, so
# it costs a save little.
READ_BYTES = 1 << 22


def entry_of(data: bytes) -> FileEntry:
    """Returns the entry of a file with this content."""
    return {"bytes": len(data), "crc32": zlib.crc32(data)}


def add_to(entry: FileEntry, data: Any) -> None:
    """Adds the bytes that follow to an entry."""
    view = memoryview(data).cast("B")
    entry["bytes"] += view.nbytes
    entry["crc32"] = zlib.crc32(view, entry["crc32"])


def find_damage(fs: Storage, directory: str, entries: dict[str, FileEntry]) -> str | None:
    """Reads files back and returns what is wrong with the first damaged one, None if all are as they were written."""
    for name, expected in entries.items():
        entry = entry_of(b"")
        try:
            path = posixpath.join(directory, name)
            with os_errors(path), fs.open(path, "rb") as file:
                while block := file.read(READ_BYTES):
                    add_to(entry, block)
        except OSError as error:
            return f"{name} cannot be read ({error})"
        if entry["bytes"] != expected["bytes"]:
            return f"{name} is damaged: it has {plural(entry['bytes'], 'byte')}, and {expected['bytes']:,} were written"
        if entry["crc32"] != expected["crc32"]:
            return (
                f"{name} is damaged: its CRC-32 is {entry['crc32']:08x}, and was {expected['crc32']:08x} when written"
            )
    return None
