"""How a job is restored from a checkpoint."""

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.checkpoint import Checkpoint
from trainer.distributed import Ranks, gather_to_all
from trainer.state import State, is_row_state, write_row_state


def restore(checkpoint: Checkpoint, tensors: State, ranks: Ranks, partial: bool = False) -> None:
    """Fills tensors in place from a checkpoint, whatever its plan and number of ranks were.

    Args:
        checkpoint: Where to read.
        tensors: This rank's tensors; each is filled.
        ranks: This process among the ranks that restore together.
        partial: Whether the checkpoint may hold more than these tensors, as when only the weights are wanted.

    Raises:
        ValueError: The checkpoint lacks one of the tensors, or holds one that is not asked for.
    """
    reader = FsspecReader(checkpoint.url)
    metadata = reader.read_metadata().state_dict_metadata
    _check_names(checkpoint.url, set(metadata), tensors, ranks, partial)
    sizes = {name: entry.size for name, entry in metadata.items() if isinstance(entry, TensorStorageMetadata)}
    recut = {name: value for name, value in tensors.items() if is_row_state(name, value, sizes[name])}
    whole = {name: torch.empty(sizes[name]) for name in recut}
    same = {name: value for name, value in tensors.items() if name not in recut}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(same | whole, storage_reader=reader, planner=planner)
    for name, value in recut.items():
        write_row_state(value, whole[name], _table_rows(name, tensors))


def _check_names(url: str, saved: set[str], tensors: State, ranks: Ranks, partial: bool) -> None:
    wanted = set().union(*gather_to_all(set(tensors), ranks))
    if missing := sorted(wanted - saved):
        raise ValueError(f"checkpoint {url} lacks {len(missing)} tensors of this model, such as '{missing[0]}'")
    if not partial and (unused := sorted(saved - wanted)):
        raise ValueError(f"checkpoint {url} holds {len(unused)} tensors that this model lacks, such as '{unused[0]}'")


def _table_rows(name: str, tensors: State) -> int:
    table = name.split(".")[1]
    return next(value.size(0) for key, value in tensors.items() if key.endswith(f"embedding_bags.{table}.weight"))
