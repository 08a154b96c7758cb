"""Reads single rows of the tensors in a checkpoint."""

import torch
from torch import Tensor

from trainer.checkpoint.io import StoredRows
from trainer.checkpoint.reader import CheckpointReader


class SavedRows:
    """The tensors of a checkpoint, a few rows at a time.

    Args:
        url: Its directory, on any fsspec URL.

    Attributes:
        entries: The checkpoint's metadata of each tensor, by name.
    """

    def __init__(self, url: str) -> None:
        self._reader = CheckpointReader(url)
        self._stored = StoredRows(self._reader, self._reader.read_metadata())
        self.entries = self._stored.entries

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
                part = self._stored.read(name, shard, first - offset, last - offset)
                target = found[first - start : last - start]
                if target.dim() == 2:
                    target = target[:, shard.offsets[1] : shard.offsets[1] + shard.sizes[1]]
                target.copy_(part)
                filled += part.numel()
        if filled != found.numel():
            raise self._stored.incomplete(name)
        self._reader.apply_changes(name, found, start)
        return found
