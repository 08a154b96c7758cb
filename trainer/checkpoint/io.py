"""Reader and writer of a checkpoint's tensors on any fsspec URL; the writer computes sizes and checksums."""

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

BESIDE = "../"  # of a file in the directory of another checkpoint of the run
BESIDE_BYTES = 1 << 18  # the checksum of fewer bytes is faster than passing them to another thread


class DirectoryReader(FsspecReader):
    """Reads the tensors in the directory of a checkpoint; failures of storage are StorageErrors.

    Args:
        url: The directory, on any fsspec URL.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.fs: FileSystem = _FileSystem()  # pyrefly: ignore
        self.path = self.fs.init_path(url)


class ChecksumWriter(FsspecWriter):
    """Writes a distributed checkpoint, and keeps the size and CRC-32 of every file that this process wrote.

    Args:
        url: Directory to write to, on any fsspec URL.

    Attributes:
        entries: Size and checksum by file name.
    """

    def __init__(self, url: str) -> None:
        self.entries: dict[str, FileEntry] = {}
        super().__init__(url, sync_files=False)  # torch syncs a file before its last bytes leave Python's buffer
        self.fs: FileSystem = _ChecksumFileSystem(self.entries)  # pyrefly: ignore
        self.path = self.fs.init_path(url)

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        """Writes this rank's tensors, without torch's own checksums.

        A save with one checksum instead of two takes a third less time.
        """
        # There is no such option for one write. torch adds `patch` to the module when it is imported.
        with config.patch("save.compute_crc32", False):  # pyrefly: ignore
            return super().write_data(*args, **kwargs)


def joined(directory: str, file: str) -> str:
    """Returns the path of a file in a directory, or beside it: `../NAME/FILE`, which object stores do not know."""
    directory = directory.rstrip("/")
    if file.startswith(BESIDE):
        return f"{directory.rpartition('/')[0]}/{file.removeprefix(BESIDE)}"
    return f"{directory}/{file}"


class _FileSystem(FileSystem):
    """Torch's file system over ours: torch's own caches listings and raises the errors of every cloud library."""

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
                # After a failed write, torch still ends its archive, which fails with another error.
                if stream.error:
                    raise stream.error from None
                raise

    def rename(self, path: Any, new_path: Any) -> None:
        if self.fs.is_object_store:  # fsspec's move would first look for directories of these names
            self.fs.cp_file(path, new_path)
            self.fs.rm_file(path)
        else:
            super().rename(path, new_path)
        self._entries[posixpath.basename(new_path)] = self._entries.pop(posixpath.basename(path))


class _ChecksumStream:
    """A file that computes the size and checksum of the bytes written to it; of large writes, while they are written.

    Attributes:
        entry: The size and checksum.
        error: Why a write failed; None if no write failed.
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
            added.result()  # torch uses the memory again after this

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
    """Where the values of a saved local shard begin: a file, and a byte of it."""

    path: str
    begin: int


# DCP reads a whole local shard even for a few rows, and the only shard of a table can exceed a host's memory.
class StoredRows:
    """The saved local shards of a checkpoint, a few rows at a time.

    Args:
        reader: Reads its files.
        metadata: Says where the shards are.

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
            InputError: The checkpoint does not hold all of them.
            StorageError: It cannot be read.
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
        """Returns the error of a tensor without all of its values."""
        return InputError(
            f"checkpoint {self._url} is incomplete: it lacks values of '{name}'; name the checkpoint before it"
        )

    def _place(self, name: str, shard: ChunkStorageMetadata) -> _Place:
        index = MetadataIndex(name, shard.offsets)
        if index not in self._places:
            stored = self._stored[index]
            path = joined(self._path, stored.relative_path)
            # A fake tensor has no values, but knows where they are.
            with self._fs.open(path, "rb") as file, FakeTensorMode():
                saved = torch.load(self._reader._slice_file(file, stored), weights_only=True)
            assert saved.size() == shard.sizes, f"{name}: {saved.size()}"
            assert saved.is_contiguous(), f"{name}: {saved.stride()}"
            assert saved.storage_offset() == 0, f"{name}: {saved.storage_offset()}"
            begin = saved.untyped_storage()._checkpoint_offset
            assert begin is not None
            self._places[index] = _Place(path, stored.offset + begin)
        return self._places[index]
