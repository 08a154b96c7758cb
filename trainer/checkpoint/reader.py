"""Reads the tensors of a checkpoint with torch.distributed.checkpoint; a delta as if it were whole."""

from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from trainer.checkpoint.deltas import ChangedRows, is_of_changes
from trainer.checkpoint.io import BESIDE, DirectoryReader
from trainer.checkpoint.store import links_of


class CheckpointReader(DirectoryReader):
    """Reads a checkpoint; failures of storage are StorageErrors.

    Of a delta, a tensor is read where it is whole, in the newest directory of the chain that has it, and then the
    changed rows of all later deltas are written over it.

    Args:
        url: Its directory, on any fsspec URL.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._changes: list[ChangedRows] = []
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns where all tensors of the checkpoint are; reads it once, as 100,000 shards take 3 seconds."""
        if self._metadata is None:
            self._metadata = self._read_metadata(super().read_metadata(*args, **kwargs))
        return self._metadata

    def _read_metadata(self, newest: Metadata) -> Metadata:
        *earlier, _ = links_of(str(self.path))
        if not earlier:
            return newest
        entries, stored = {}, {}
        for reader in (*map(DirectoryReader, earlier), self):
            metadata = newest if reader is self else reader.read_metadata()
            whole = {name: entry for name, entry in metadata.state_dict_metadata.items() if not is_of_changes(name)}
            beside = "" if reader is self else f"{BESIDE}{str(reader.path).rstrip('/').rpartition('/')[2]}/"
            places = {
                index: replace(place, relative_path=f"{beside}{place.relative_path}")
                for index, place in metadata.storage_data.items()
                if index.fqn in whole
            }
            stored = {index: place for index, place in stored.items() if index.fqn not in whole} | places
            entries |= whole
            self._changes.append(ChangedRows(reader, metadata))
        return replace(newest, state_dict_metadata=entries, storage_data=stored)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan says, and writes the changed rows over it."""
        done = super().read_data(plan, planner)
        if self._changes:
            for item in plan.items:
                target = planner.resolve_tensor(item).detach()
                if target.dim():
                    offsets = item.storage_index.offset or [0] * target.dim()
                    first, column = [*(a + b for a, b in zip(offsets, item.storage_offsets, strict=True)), 0][:2]
                    self.apply_changes(self._saved_name(item.storage_index.fqn), target, first, column)
        return done

    def apply_changes(self, name: str, target: Tensor, first: int, column: int = 0) -> None:
        """Writes the changed rows of the deltas over a part of a tensor, `[R, C]` or `[R]`, that begins there."""
        for changes in self._changes:
            changes.apply(name, target, first, column)

    def _saved_name(self, name: str) -> str:
        """Returns the name in the checkpoint of a tensor that is read under a name."""
        return name
