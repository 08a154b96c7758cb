"""Fills tensors from a checkpoint of any plan and number of ranks, and verifies that every value was filled.

`restore` is for the run's own checkpoint, `fill` for any selection of tensors. DCP reshards all tensors but one kind:
row-wise optimizer state, whose size depends on the plan. The second half of this file handles it.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from trainer.checkpoint.reader import CheckpointReader
from trainer.checkpoint.state_dict import State, is_by_row, is_table, table_of
from trainer.checkpoint.store import Checkpoint
from trainer.core.console import plural
from trainer.core.distributed import (
    DistributedContext,
    broadcast_from_rank0,
    gather_to_all,
    gather_to_rank0,
    placed_shards,
)
from trainer.core.errors import InputError, StorageError

Shapes = dict[str, torch.Size]


def restore(
    checkpoint: Checkpoint,
    tensors: State,
    context: DistributedContext,
    partial: bool = False,
    grown: bool = False,
) -> None:
    """Fills all tensors in place from a checkpoint of the same model.

    Args:
        checkpoint: The checkpoint.
        tensors: This rank's tensors; state of dense optimizers must be zero.
        context: This process among the ranks that restore together.
        partial: Whether the checkpoint may hold more tensors, for example when only weights are restored.
        grown: Whether tables may have more rows than were saved; the additional rows stay as they are.

    Raises:
        InputError: The checkpoint lacks a tensor or values of it, or holds an unexpected tensor.
    """
    wanted = shapes_of(tensors, context)

    def check() -> set[str]:
        saved = saved_shapes(checkpoint.url)
        unused = _state_before_first_step(saved, wanted)
        kept = {name: shape for name, shape in wanted.items() if name not in unused}
        _check_same(checkpoint.url, saved, kept, partial, grown)
        return unused

    unused = broadcast_from_rank0(context, check)
    fill(checkpoint.url, tensors, {name: name for name in tensors if name not in unused}, context)


def shapes_of(tensors: State, context: DistributedContext) -> Shapes:
    """Returns the shapes of whole tensors by name: on rank 0 the tensors of all ranks, on other ranks their own."""
    shapes = {name: value.size() for name, value in tensors.items()}
    return {name: shape for part in gather_to_rank0(shapes, context) for name, shape in part.items()}


def saved_shapes(url: str) -> Shapes:
    """Returns the shapes of the tensors in a checkpoint, by name."""
    return {name: entry.size for name, entry in _entries(CheckpointReader(url).read_metadata()).items()}


def _entries(metadata: Metadata) -> dict[str, TensorStorageMetadata]:
    entries = metadata.state_dict_metadata.items()
    return {name: entry for name, entry in entries if isinstance(entry, TensorStorageMetadata)}


def _state_before_first_step(saved: Shapes, wanted: Shapes) -> set[str]:
    """Returns the names of optimizer state that a checkpoint lacks because no step had updated the weights; it is zero.

    Checkpoints of version 0.1.0 lack it: torch's optimizers make the state of a weight at its first step.
    """
    stateful = {_weight_of(name) for name in saved}
    return {name for name in wanted if name.startswith("dense.") and _weight_of(name) not in stateful}


def _weight_of(name: str) -> str:
    return name.rpartition(".")[0]  # `dense.NAME.SLOT` without SLOT


def _check_same(url: str, saved: Shapes, wanted: Shapes, partial: bool, grown: bool) -> None:
    if missing := sorted(wanted.keys() - saved.keys()):
        raise InputError(
            f"checkpoint {url} lacks {plural(len(missing), 'tensor')} of this model, such as '{missing[0]}'"
        )
    if not partial and (unexpected := sorted(saved.keys() - wanted.keys())):
        raise InputError(
            f"checkpoint {url} holds {plural(len(unexpected), 'tensor')} that this model lacks, such as "
            f"'{unexpected[0]}'"
        )
    for name, shape in sorted(wanted.items()):
        # The size of row-wise state depends on the plan of the run that saved it; `fill` reshards it.
        rowwise = is_rowwise_state(name, shape) and is_rowwise_state(name, saved[name])
        has_more_rows = grown and is_by_row(name) and saved[name][1:] == shape[1:] and saved[name][0] < shape[0]
        if saved[name] != shape and not rowwise and not has_more_rows:
            raise InputError(f"checkpoint {url} has '{name}' of shape {[*saved[name]]}, and this model of {[*shape]}")


def fill(url: str, tensors: State, sources: dict[str, str], context: DistributedContext) -> None:
    """Fills tensors in place from a checkpoint.

    Args:
        url: The checkpoint's directory.
        tensors: This rank's tensors. Tables and their state may have more rows than were saved; these rows stay.
        sources: The name in the checkpoint of each tensor to fill.
        context: This process among the ranks that restore together.

    Raises:
        InputError: The checkpoint does not hold all values of a tensor. The message names it.
        StorageError: The checkpoint cannot be read.
    """
    reader = _RenamingReader(url, sources)
    saved = _entries(reader.read_metadata())
    wanted = {name: value for name, value in tensors.items() if name in sources}
    resharded = _changed_column_shards(wanted, saved)
    # Every rank loads this state whole: a value per row is little beside a row of the table.
    whole = {name: torch.empty(saved[name].size, dtype=saved[name].properties.dtype) for name in resharded}
    direct = {name: value for name, value in wanted.items() if name not in resharded}
    reader.sizes = {name: value.size() for name, value in direct.items()}
    planner = _CountingPlanner()
    try:
        is_alone = context.world_size == 1  # collectives are needless, as in `gather_to_all`
        dcp.load(direct | whole, storage_reader=reader, planner=planner, no_dist=is_alone)
    except CheckpointException as failure:  # raised on every rank if any rank fails; a BaseException, not an Exception
        rank, (error, _) = min(failure.failures.items())
        unreadable = StorageError(f"checkpoint {url} cannot be read: rank {rank}: {error}")
        broadcast_from_rank0(context, lambda: _raise(unreadable))
    _check_filled(url, direct | whole, saved, planner.filled, context)
    for name, (before, now) in resharded.items():
        write_rowwise_state(wanted[name], whole[name], before, now.rows)


@dataclass(frozen=True)
class ColumnShards:
    """The column shards of a table.

    Attributes:
        rows: Number of rows of the table.
        widths: Number of columns of each shard, from left to right.
    """

    rows: int
    widths: tuple[int, ...]

    @classmethod
    def of_table(cls, table: Tensor) -> Self:
        """Returns the column shards of a table in the model."""
        if not isinstance(table, ShardedTensor):
            return cls(table.size(0), (table.size(1),))
        shards = table.metadata().shards_metadata
        return cls(table.size(0), _widths([(shard.shard_offsets, shard.shard_sizes) for shard in shards]))

    @classmethod
    def of_saved(cls, table: TensorStorageMetadata) -> Self:
        """Returns the column shards of a table in a checkpoint."""
        return cls(table.size[0], _widths([(chunk.offsets, chunk.sizes) for chunk in table.chunks]))


def _widths(parts: list[tuple[list[int] | torch.Size, list[int] | torch.Size]]) -> tuple[int, ...]:
    width_at = {offsets[1]: sizes[1] for offsets, sizes in parts}
    return tuple(width_at[offset] for offset in sorted(width_at))


def is_rowwise_state(name: str, shape: torch.Size) -> bool:
    """Returns whether a tensor is row-wise state of a table, with a value per row in each of its column shards.

    TorchRec lays this state out as `[column shards * rows]`, from left to right. Its size therefore depends on the
    plan, and DCP cannot reshard it ("Size mismatch between saved [203] and current [406]").
    """
    return name.startswith(("table.", "ema_touched.")) and len(shape) == 1


def write_rowwise_state(value: Tensor, saved: Tensor, saved_shards: ColumnShards, rows: int) -> None:
    """Fills row-wise state that was saved under other column shards, or for fewer rows.

    The value of a shard is a mean over the shard's columns. So the mean over the shards, weighted by their widths, is
    the value of the whole row. It fills all new shards.

    Args:
        value: The state to fill, `[column shards * rows]`; rows that were not saved keep their values.
        saved: The saved state, `[saved column shards * saved rows]`.
        saved_shards: The column shards of the saved table.
        rows: Number of rows of the table in the model.
    """
    # In float64 the mean of equal values is exact: going from 1 shard to 4 and back changes no bit.
    widths = torch.tensor(saved_shards.widths, dtype=torch.float64)
    per_row = widths @ saved.view(len(widths), saved_shards.rows).double() / widths.sum()
    for shard, offsets in placed_shards(value):
        row = (offsets[0] + torch.arange(len(shard))) % rows
        known = row < saved_shards.rows
        shard[known.to(shard.device)] = per_row[row[known]].to(shard)


def _changed_column_shards(
    tensors: State, saved: dict[str, TensorStorageMetadata]
) -> dict[str, tuple[ColumnShards, ColumnShards]]:
    """Returns the row-wise state to reshard, by name, with the column shards then and now."""
    # By table: the name of its weights or of their average, which has the same shards.
    tables = {table_of(name): name for name in tensors if is_table(name)}
    states = {name: tables[table_of(name)] for name, value in tensors.items() if is_rowwise_state(name, value.size())}
    shards = {
        name: (ColumnShards.of_saved(saved[table]), ColumnShards.of_table(tensors[table]))
        for name, table in states.items()
    }
    return {name: (before, now) for name, (before, now) in shards.items() if before != now}


class _RenamingReader(CheckpointReader):
    """Reads a checkpoint as if its tensors had other names and sizes.

    DCP cannot map names, and refuses a tensor of another size than the saved tensor, even with `allow_partial_load`.

    Args:
        url: Directory of the checkpoint.
        sources: The name in the checkpoint of each tensor to read.

    Attributes:
        sizes: The sizes to pretend, by name. Rows that were not saved are not read.
    """

    def __init__(self, url: str, sources: dict[str, str]) -> None:
        super().__init__(url)
        self.sizes: Shapes = {}
        self._sources = sources
        self._names: dict[str, list[str]] = defaultdict(list)
        for name, source in sources.items():
            self._names[source].append(name)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        saved = super().read_metadata(*args, **kwargs)
        return replace(
            saved,
            state_dict_metadata={
                name: replace(entry, size=self.sizes.get(name, entry.size))
                for source, entry in _entries(saved).items()
                for name in self._names.get(source, [])
            },
            storage_data={
                replace(index, fqn=name): place
                for index, place in saved.storage_data.items()
                for name in self._names.get(index.fqn, [])
            },
        )

    def _saved_name(self, name: str) -> str:
        return self._sources[name]


class _CountingPlanner(DefaultLoadPlanner):
    """A load planner that counts the values it loads.

    DCP loads the overlap of saved and local shards. It leaves values outside the overlap as they are, without an error.

    Attributes:
        filled: Number of loaded values, by name.
    """

    def __init__(self) -> None:
        # A rank without a shard of a table lacks the name of the table's state. With flattened names DCP would take
        # such a rank for a reader of its format before 2.4, and fail on other names.
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.filled: dict[str, int] = defaultdict(int)

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        self.filled[read_item.dest_index.fqn] += tensor.numel()


def _check_filled(
    url: str,
    tensors: State,
    saved: dict[str, TensorStorageMetadata],
    filled: dict[str, int],
    context: DistributedContext,
) -> None:
    found = None
    for name, value in tensors.items():
        expected = sum(_saved_values(shard, offsets, saved[name].size) for shard, offsets in placed_shards(value))
        if filled[name] != expected:
            found = found or f"{filled[name]:,} of the {expected:,} values of '{name}' on rank {context.rank}"
    if problems := [problem for problem in gather_to_all(found, context) if problem]:
        error = InputError(
            f"checkpoint {url} is incomplete: it fills {problems[0]}; delete it to resume from the checkpoint before it"
        )
        broadcast_from_rank0(context, lambda: _raise(error))


def _raise(error: Exception) -> None:
    raise error


def _saved_values(shard: Tensor, offsets: list[int], saved: torch.Size) -> int:
    """Returns how many values of a local shard were saved; the table can have grown since."""
    if not shard.dim():
        return 1
    rows = max(0, min(len(shard), saved[0] - offsets[0]))
    return rows * shard[0:1].numel() if len(shard) else 0
