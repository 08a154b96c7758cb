"""Reads and writes the tensors of a checkpoint on any fsspec URL, and computes sizes and checksums while writing.

These are the storage classes that torch.distributed.checkpoint (DCP) is given. Its own would cache listings, raise the
errors of every cloud library, and read whole shards where a few rows are needed.
"""

import posixpath
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint._fsspec_filesystem import FileSystem, FsspecReader, FsspecWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata
from torch.utils.serialization import config

from trainer.checkpoint.store import FileEntry, add_to, entry_of
from trainer.core.errors import InputError
from trainer.core.storage import open_storage, os_errors

BESIDE = "../"  # prefix of the path of a file in another checkpoint of the run
BESIDE_BYTES = 1 << 18  # from this size on, another thread computes the checksum while the bytes are written


class DirectoryReader(FsspecReader):
    """Reads the tensors in the directory of a checkpoint. Failures of storage are raised as StorageError.

    Args:
        url: The directory, on any fsspec URL.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.fs: FileSystem = _FileSystem()  # pyrefly: ignore
        self.path = self.fs.init_path(url)


class ChecksumWriter(FsspecWriter):
    """Writes a distributed checkpoint, and records size and CRC-32 of every file that this process writes.

    Args:
        url: Directory to write to, on any fsspec URL.

    Attributes:
        entries: Size and checksum of each file, by name.
    """

    def __init__(self, url: str) -> None:
        self.entries: dict[str, FileEntry] = {}
        super().__init__(url, sync_files=False)  # torch would sync before the last bytes leave Python's buffer
        self.fs: FileSystem = _ChecksumFileSystem(self.entries)  # pyrefly: ignore
        self.path = self.fs.init_path(url)

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """Writes this rank's tensors, without torch's own checksums.

        A save with a single checksum instead of two takes a third less time.
        """
        # Torch has this option only for the whole process, so it is set around the write.
        with config.patch("save.compute_crc32", False):  # pyrefly: ignore
            return super().write_data(*args, **kwargs)


def joined(directory: str, file: str) -> str:
    """Joins a directory and a file name. Resolves `../NAME/FILE` by hand, because object stores have no `..`."""
    directory = directory.rstrip("/")
    if file.startswith(BESIDE):
        return f"{directory.rpartition('/')[0]}/{file.removeprefix(BESIDE)}"
    return f"{directory}/{file}"


class _FileSystem(FileSystem):
    """DCP's file system, on top of ours: torch's own caches listings and raises the errors of every cloud library."""

    def init_path(self, path: Any, **kwargs: Any) -> Any:
        self.fs: Any = open_storage(path)[0]
        return path

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with os_errors(str(path)), super().create_stream(path, mode) as stream:
            yield stream

    def concat_path(self, path: Any, suffix: str) -> str:
        return joined(str(path), suffix)

    def mkdir(self, path: Any) -> None:
        self.fs.makedirs(path)


class _ChecksumFileSystem(_FileSystem):
    def __init__(self, entries: dict[str, FileEntry]) -> None:
        super().__init__()
        self._entries = entries

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        assert mode == "wb", "a writer reads nothing back"
        with ThreadPoolExecutor(1, "checksum") as thread, self.fs.durable(path) as file:
            stream = _ChecksumStream(file, thread)
            self._entries[posixpath.basename(path)] = stream.entry
            try:
                yield stream
            except RuntimeError:
                # After a failed write, torch still ends its archive and fails with another error. The first is raised.
                if stream.error:
                    raise stream.error from None
                raise

    def rename(self, path: Any, new_path: Any) -> None:
        if self.fs.is_object_store:  # fsspec's move would look for directories of these names first
            self.fs.cp_file(path, new_path)
            self.fs.rm_file(path)
        else:
            super().rename(path, new_path)
        self._entries[posixpath.basename(new_path)] = self._entries.pop(posixpath.basename(path))


class _ChecksumStream:
    """A file that computes size and checksum of the bytes written to it, of large writes in another thread meanwhile.

    Attributes:
        entry: The size and checksum.
        error: The reason why a write failed; None if none failed.
    """

    def __init__(self, stream: Any, thread: ThreadPoolExecutor) -> None:
        self._stream, self._thread = stream, thread
        self.entry = entry_of(b"")
        self.error: Exception | None = None

    def write(self, data: Any) -> int:
        if memoryview(data).nbytes < BESIDE_BYTES:
            add_to(self.entry, data)
            return self._write(data)
        added = self._thread.submit(add_to, self.entry, data)
        try:
            return self._write(data)
        finally:
            added.result()  # torch reuses the memory as soon as `write` returns

    def _write(self, data: Any) -> int:
        try:
            return self._stream.write(data)
        except Exception as error:  # errors of object stores are not OSErrors
            self.error = error
            raise

    def close(self) -> None:
        """Does nothing: torch closes the file before `durable` has synced it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass(frozen=True)
class _Place:
    """Where the values of a saved local shard begin: a file, and an offset in bytes."""

    path: str
    begin: int


# For tools that need a few rows: DCP would read a whole local shard, and a table's only shard can exceed the memory.
class StoredRows:
    """Reads the saved local shards of a checkpoint a few rows at a time.

    Args:
        reader: Reads the checkpoint's files.
        metadata: DCP's metadata, with the places of the shards.

    Attributes:
        entries: The metadata of each tensor, by name.
    """

    def __init__(self, reader: DirectoryReader, metadata: Metadata) -> None:
        self._reader, self._url = reader, str(reader.path)
        self._fs, self._path = open_storage(self._url)
        saved = metadata.state_dict_metadata.items()
        self.entries = {name: entry for name, entry in saved if isinstance(entry, TensorStorageMetadata)}
        self._stored = metadata.storage_data
        self._places: dict[MetadataIndex, _Place] = {}

    def read(self, name: str, shard: ChunkStorageMetadata, start: int, stop: int) -> Tensor:
        """Returns rows of a local shard, counted from its first.

        Raises:
            InputError: The checkpoint does not hold all of these rows.
            StorageError: The checkpoint cannot be read.
        """
        place, shape = self._place(name, shard), (stop - start, *shard.sizes[1:])
        dtype = self.entries[name].properties.dtype
        row_bytes = shard.sizes[1:].numel() * dtype.itemsize
        begin, end = (place.begin + row * row_bytes for row in (start, stop))
        content = bytearray(self._fs.cat_file(place.path, start=begin, end=end))
        if len(content) != end - begin:
            raise self.incomplete(name)
        return torch.frombuffer(content, dtype=dtype).view(shape)

    def incomplete(self, name: str) -> InputError:
        """Returns the error for a tensor whose values are not all in the checkpoint."""
        return InputError(
            f"checkpoint {self._url} is incomplete: it lacks values of '{name}'; name the checkpoint before it"
        )

    def _place(self, name: str, shard: ChunkStorageMetadata) -> _Place:
        index = MetadataIndex(name, shard.offsets)
        if index not in self._places:
            stored = self._stored[index]
            path = joined(self._path, stored.relative_path)
            # Loaded as fake tensors: they have no values, but know where in the file these are.
            with self._fs.open(path, "rb") as file, FakeTensorMode():
                saved = torch.load(self._reader._slice_file(file, stored), weights_only=True)
            assert saved.size() == shard.sizes, f"{name}: {saved.size()}"
            assert saved.is_contiguous(), f"{name}: {saved.stride()}"
            assert saved.storage_offset() == 0, f"{name}: {saved.storage_offset()}"
            begin = saved.untyped_storage()._checkpoint_offset
            assert begin is not None
            self._places[index] = _Place(path, stored.offset + begin)
        return self._places[index]
