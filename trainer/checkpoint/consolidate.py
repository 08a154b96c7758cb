"""A checkpoint as plain tensors: no shards, no plan, no process group."""

import posixpath
from contextlib import suppress
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.checkpoint.io import CheckpointReader
from trainer.core.storage import Storage, named, open_storage


def read_tensors(url: str) -> dict[str, Tensor]:
    """Returns all tensors of a checkpoint, whole and in memory, under their names there."""
    reader = CheckpointReader(url)
    entries = reader.read_metadata().state_dict_metadata
    # torch's dcp_to_torch_save reads local directories only.
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def write_plain(state: dict[str, Any], file: str) -> None:
    """Writes one file that `torch.load(file, weights_only=True)` reads; it appears once it is complete.

    Args:
        state: Tensors and numbers by name.
        file: Any fsspec URL.

    Raises:
        InputError: It cannot be written.
    """
    with named("--convert", file):
        fs, path = open_storage(file)
        fs.makedirs(posixpath.dirname(path))
        try:
            _save(state, fs, f"{path}.partial")
            fs.mv(f"{path}.partial", path)
        except OSError:
            with suppress(OSError):
                fs.rm_file(f"{path}.partial")
            raise


def _save(state: dict[str, Any], fs: Storage, path: str) -> None:
    try:
        with fs.open(path, "wb") as file:
            torch.save(state, file)  # pyrefly: ignore
    except RuntimeError as error:  # torch's type for a failed write
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None
