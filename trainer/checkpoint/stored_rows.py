"""Reads single rows of the local shards in a checkpoint's files."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorStorageMetadata

from trainer.checkpoint.io import DirectoryReader, joined
from trainer.core.errors import InputError
from trainer.core.storage import open_storage


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
