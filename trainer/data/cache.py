"""Keeps the outlines of data sets, the indexes of CSV files and the blocks of compressed files from job to job."""

import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from trainer.core.storage import Storage, named, open_storage

LOCAL = Storage(LocalFileSystem())
OFFSET = np.dtype("<i8")


class Cache:
    """A directory of files that are written whole. Files may be deleted while no job runs.

    Args:
        url: The directory, on any fsspec URL. Unset: torchx-recsys in the user's cache directory.
        key: The key that names the directory, for messages.

    Raises:
        InputError: The directory cannot be used.
    """

    def __init__(self, url: str | None, key: str = "data.cache") -> None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self._url, self._key = url or str(Path(home, "torchx-recsys")), key
        with self._named():
            fs, folder = open_storage(self._url)
            fs.makedirs(folder)
        self._fs: Storage = fs
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        with self._named():
            return self._fs.cat_file(self._path(name)) if self._fs.exists(self._path(name)) else None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file."""
        self._write(name, [content])

    def remove(self, name: str) -> None:
        """Removes a file if it exists."""
        with self._named():
            if self._fs.exists(self._path(name)):
                self._fs.rm_file(self._path(name))

    def has(self, name: str) -> bool:
        """Returns whether there is such a file."""
        with self._named():
            return self._fs.exists(self._path(name))

    def write_blocks(self, name: str, blocks: Iterable[bytes]) -> None:
        """Writes a file of blocks, each compressed alone, and a footer with the place of each block."""

        def parts() -> Iterator[bytes]:
            codec, offsets = pa.Codec("zstd", 1), [0]
            for block in blocks:
                yield (part := codec.compress(block, asbytes=True))
                offsets.append(offsets[-1] + len(part))
            yield np.array(offsets, OFFSET).tobytes()

        self._write(name, parts())

    def read_offsets(self, name: str, blocks: int) -> np.ndarray:
        """Returns where each block of a file begins, and where the last ends, `[blocks + 1]`."""
        with self._named():
            footer = self._fs.cat_file(self._path(name), start=-OFFSET.itemsize * (blocks + 1))
        return np.frombuffer(footer, OFFSET)

    def read_block(self, name: str, start: int, stop: int, size: int) -> bytes:
        """Returns the block of `size` bytes that is stored in `[start, stop)` of a file."""
        with self._named():
            stored = self._fs.cat_file(self._path(name), start=start, end=stop)
        return pa.Codec("zstd").decompress(stored, size, asbytes=True)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Makes other processes and threads of this host that write the same file wait."""
        if not self._fs.is_local:  # at worst two hosts write the same file, with the same content
            yield
            return
        with self._named():
            file = open(f"{self._path(name)}.lock", "w")  # noqa: SIM115, for errors of the block are not the cache's
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _named(self) -> AbstractContextManager[None]:
        return named(self._key, self._url)

    def _write(self, name: str, parts: Iterable[bytes]) -> None:
        """Writes a file under another name, and moves the whole file."""
        fs, path = (LOCAL, None) if self._fs.is_object_store else (self._fs, self._path(name))
        # Only whole files go to an object store: if a part failed, fsspec would store the beginning of the file.
        partial = f"{path or Path(tempfile.gettempdir(), name)}.{uuid.uuid4().hex}.partial"
        try:
            with self._named():
                file = fs.open(partial, "wb")
            with file:
                for part in parts:  # not within `named`: making a part may fail, too
                    with self._named():
                        file.write(part)
            with self._named():
                fs.mv(partial, path) if path else self._fs.put_file(partial, self._path(name))
        finally:
            if fs.exists(partial):
                fs.rm_file(partial)
