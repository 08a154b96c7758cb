"""Reads the tensors of a checkpoint without a plan: whole, a few rows at a time, or all into a plain file."""

import posixpath
import tempfile
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainer.checkpoint.io import StoredRows
from trainer.checkpoint.reader import CheckpointReader
from trainer.core.errors import InputError
from trainer.core.storage import Storage, named, open_storage, partial_name

SAFETENSORS = ".safetensors"


def read_tensors(url: str, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Tensor]:
    """Returns the wanted tensors of a checkpoint, whole and in memory, under their names there."""
    reader = CheckpointReader(url)
    entries = reader.read_metadata().state_dict_metadata
    # torch's dcp_to_torch_save reads local directories only.
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata) and wanted(name)
    }
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


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


def write_plain(tensors: dict[str, Tensor], step: int, file: str) -> None:
    """Writes one file that `torch.load(file, weights_only=True)` reads; it appears once it is complete.

    Args:
        tensors: Tensors by name.
        step: Steps done.
        file: Any fsspec URL. One that ends in `.safetensors` is of that format.

    Raises:
        InputError: It cannot be written, or safetensors is not installed.
    """
    save = _safetensors(tensors, step) if file.endswith(SAFETENSORS) else _plain(tensors, step)
    with named("--convert", file):
        fs, path = open_storage(file)
        fs.makedirs(posixpath.dirname(path))
        partial = partial_name(path)
        try:
            save(fs, partial)
            fs.mv(partial, path)
        except OSError:
            with suppress(OSError):
                fs.rm_file(partial)
            raise


def _plain(tensors: dict[str, Tensor], step: int) -> Callable[[Storage, str], None]:
    def save(fs: Storage, path: str) -> None:
        try:
            with fs.open(path, "wb") as file:
                torch.save({"step": step, **tensors}, file)  # pyrefly: ignore
        except RuntimeError as error:  # torch's type for a failed write
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None

    return save


def _safetensors(tensors: dict[str, Tensor], step: int) -> Callable[[Storage, str], None]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        raise InputError(
            "--convert names a file of safetensors, which is not installed; pip install 'torchx-recsys[safetensors]'"
        ) from error

    def save(fs: Storage, path: str) -> None:
        # It writes local files only. Making the file in memory would take the checkpoint's memory again.
        with tempfile.TemporaryDirectory() as folder:
            local = path if fs.is_local else f"{folder}/file"
            try:
                save_file(tensors, local, {"step": str(step)})
            except SafetensorError as error:
                raise OSError(str(error)) from error
            if not fs.is_local:
                fs.put_file(local, path)

    return save
