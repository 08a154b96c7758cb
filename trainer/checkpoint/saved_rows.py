"""Reads single rows of the tensors in a checkpoint."""

import posixpath
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

from trainer.checkpoint.io import CheckpointReader
from trainer.core.errors import InputError
from trainer.core.storage import open_storage


@dataclass(frozen=True)
class _Place:
    """Where the values of a saved local shard begin: a file, and a byte of it."""

    path: str
    begin: int


# DCP reads a whole local shard even for a few rows, and the only shard of a table can exceed a host's memory.
class SavedRows:
    """The tensors of a checkpoint, a few rows at a time.

    Args:
        url: Its directory, on any fsspec URL.

    Attributes:
        entries: The checkpoint's metadata of each tensor, by name.
    """

    def __init__(self, url: str) -> None:
        self._url, self._reader = url, CheckpointReader(url)
        self._fs, self._path = open_storage(url)
        metadata = self._reader.read_metadata()
        saved = metadata.state_dict_metadata.items()
        self.entries = {name: entry for name, entry in saved if isinstance(entry, TensorStorageMetadata)}
        self._stored = metadata.storage_data
        self._places: dict[MetadataIndex, _Place] = {}

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Returns the rows of a tensor from `start` to `stop`.

        Raises:
            InputError: The checkpoint does not hold all of them.
            StorageError: It cannot be read.
        """
        entry, filled = self.entries[name], 0
        found = torch.empty((stop - start, *entry.size[1:]), dtype=entry.properties.dtype)
        for shard in entry.chunks:
            offset, last = shard.offsets[0], shard.offsets[0] + shard.sizes[0]
            first, last = max(start, offset), min(stop, last)
            if first < last:
                part = self._read(name, shard, found.dtype, first - offset, last - offset)
                target = found[first - start : last - start]
                if target.dim() == 2:
                    target = target[:, shard.offsets[1] : shard.offsets[1] + shard.sizes[1]]
                target.copy_(part)
                filled += part.numel()
        if filled != found.numel():
            raise self._incomplete(name)
        return found

    def _read(self, name: str, shard: ChunkStorageMetadata, dtype: torch.dtype, start: int, stop: int) -> Tensor:
        """Returns rows of a local shard, counted from its first."""
        place, shape = self._place(name, shard), (stop - start, *shard.sizes[1:])
        row_bytes = shard.sizes[1:].numel() * dtype.itemsize
        begin, end = (place.begin + row * row_bytes for row in (start, stop))
        content = bytearray(self._fs.cat_file(place.path, start=begin, end=end))
        if len(content) != end - begin:
            raise self._incomplete(name)
        return torch.frombuffer(content, dtype=dtype).view(shape)

    def _place(self, name: str, shard: ChunkStorageMetadata) -> _Place:
        index = MetadataIndex(name, shard.offsets)
        if index not in self._places:
            stored = self._stored[index]
            path = posixpath.join(self._path, stored.relative_path)
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

    def _incomplete(self, name: str) -> InputError:
        return InputError(
            f"checkpoint {self._url} is incomplete: it lacks values of '{name}'; name the checkpoint before it"
        )
