"""Reading and writing a checkpoint's tensors on any fsspec URL, and taking note of what was written."""

import posixpath
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint._fsspec_filesystem import FileSystem, FsspecReader, FsspecWriter
from torch.serialization import get_crc32_options, set_crc32_options

from trainer.checkpoint.manifest import FileEntry, add_to, entry_of
from trainer.core.storage import open_storage, os_errors

BESIDE_BYTES = 1 << 18  # below that, to hand it to another thread takes longer than to count it


class CheckpointReader(FsspecReader):
    """Reads a distributed checkpoint; what storage raises are OSErrors.

    Args:
        url: Its directory, on any fsspec URL.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.fs: FileSystem = _FileSystem()  # pyrefly: ignore
        self.path = self.fs.init_path(url)


class ChecksumWriter(FsspecWriter):
    """Writes a distributed checkpoint and keeps the size and CRC-32 of every file that this process wrote.

    Args:
        url: Directory to write to, on any fsspec URL.

    Attributes:
        entries: By file name.
    """

    def __init__(self, url: str) -> None:
        self.entries: dict[str, FileEntry] = {}
        super().__init__(url, sync_files=False)  # torch would do it before the last bytes leave Python
        self.fs: FileSystem = _CountingFileSystem(self.entries)  # pyrefly: ignore
        self.path = self.fs.init_path(url)

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """Writes this rank's tensors, without torch's own checksums, each of which costs more than ours."""
        torchs_own = get_crc32_options()
        set_crc32_options(False)
        try:
            return super().write_data(*args, **kwargs)
        finally:
            set_crc32_options(torchs_own)


class _FileSystem(FileSystem):
    def init_path(self, path: Any, **kwargs: Any) -> Any:
        self.fs: Any = open_storage(path)[0]
        return path

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with os_errors(str(path)), super().create_stream(path, mode) as stream:
            yield stream

    def mkdir(self, path: Any) -> None:
        self.fs.makedirs(path)


class _CountingFileSystem(_FileSystem):
    def __init__(self, entries: dict[str, FileEntry]) -> None:
        super().__init__()
        self._entries = entries

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        assert mode == "wb", "a writer reads nothing back"
        with ThreadPoolExecutor(1, "checksum") as beside, self.fs.durable(path) as file:
            stream = _CountingStream(file, beside)
            self._entries[posixpath.basename(path)] = stream.entry
            yield stream

    def rename(self, path: Any, new_path: Any) -> None:
        if self.fs.is_object_store:
            self.fs.cp_file(path, new_path)
            self.fs.rm_file(path)
        else:
            super().rename(path, new_path)
        self._entries[posixpath.basename(new_path)] = self._entries.pop(posixpath.basename(path))


class _CountingStream:
    """A file, of which what is written to it is counted; much of it beside the writing."""

    def __init__(self, stream: Any, beside: ThreadPoolExecutor) -> None:
        self._stream, self._beside = stream, beside
        self.entry = entry_of(b"")

    def write(self, data: Any) -> int:
        if memoryview(data).nbytes < BESIDE_BYTES:
            add_to(self.entry, data)
            return self._stream.write(data)
        counted = self._beside.submit(add_to, self.entry, data)
        try:
            return self._stream.write(data)
        finally:
            counted.result()  # the memory is torch's again when this returns

    def close(self) -> None:
        """Leaves the file open for whoever opened it, who has to make it last first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
