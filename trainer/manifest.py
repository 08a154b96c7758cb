"""Sizes and checksums: what makes a checkpoint's files trustworthy."""

import posixpath
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsspec import AbstractFileSystem
from torch.distributed.checkpoint._fsspec_filesystem import FileSystem, FsspecWriter

FileEntry = dict[str, int]
"""`bytes` and `crc32` of one file."""

READ_BYTES = 1 << 22


class ChecksumWriter(FsspecWriter):
    """Writes a distributed checkpoint and keeps the size and CRC-32 of every file that this process wrote.

    Args:
        url: Directory to write to, on any fsspec URL.

    Attributes:
        entries: By file name.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.entries: dict[str, FileEntry] = {}
        self.fs: FileSystem = _CountingFileSystem(self.entries)  # pyrefly: ignore
        self.path = self.fs.init_path(url)


class _CountingFileSystem(FileSystem):
    def __init__(self, entries: dict[str, FileEntry]) -> None:
        super().__init__()
        self._entries = entries

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            if "w" in mode:
                stream = _CountingStream(stream)
                self._entries[posixpath.basename(path)] = stream.entry
            yield stream

    def rename(self, path: Any, new_path: Any) -> None:
        super().rename(path, new_path)
        self._entries[posixpath.basename(new_path)] = self._entries.pop(posixpath.basename(path))


class _CountingStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.entry = entry_of(b"")

    def write(self, data: Any) -> int:
        add_to(self.entry, data)
        return self._stream.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def entry_of(data: bytes) -> FileEntry:
    """Returns the entry of a file with this content."""
    return {"bytes": len(data), "crc32": zlib.crc32(data)}


def add_to(entry: FileEntry, data: Any) -> None:
    """Continues an entry with the bytes that follow."""
    view = memoryview(data).cast("B")
    entry["bytes"] += view.nbytes
    entry["crc32"] = zlib.crc32(view, entry["crc32"])


def find_damage(fs: AbstractFileSystem, directory: str, entries: dict[str, FileEntry]) -> str | None:
    """Reads files back and returns what is wrong with the first that is not as it was written, None if all are."""
    for name, expected in entries.items():
        entry = entry_of(b"")
        try:
            with fs.open(posixpath.join(directory, name), "rb") as file:
                while block := file.read(READ_BYTES):
                    add_to(entry, block)
        except OSError as error:
            return f"{name} cannot be read ({error})"
        if entry != expected:
            return f"{name} is damaged ({entry['bytes']} bytes, {expected['bytes']} were written)"
    return None
