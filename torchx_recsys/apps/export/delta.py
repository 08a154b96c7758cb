"""Reduces an export to its differences from its predecessor, the export that current.json names."""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchx_recsys.apps.export.directory import bring, current_or_none, read_chain
from torchx_recsys.apps.export.load import CHANGES, INDEX, Export, load, program_of
from trainer.checkpoint.deltas import BLOCK_BYTES, rows_differ
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named

PROGRAM = "model.pt2"
SMALL_BYTES = 64 << 10  # size up to which a tensor is written whole
ALIGNED_BYTES = 8  # alignment of tensors in changes.bin, enough for every type of numbers
OF_A_STEP = ("step", "quality")  # keys of a signature that may differ between steps
MOST = 0.5  # limit on the bytes of a chain's changes, as a fraction of its whole export


class WholeExportError(ValueError):
    """An export has to stay whole; the message is the reason."""


@dataclass(frozen=True)
class Delta:
    """The changes of an export.

    Attributes:
        predecessor: The export before it.
        rows: The number of rows that differ, in tensors that are not written whole.
    """

    predecessor: Export
    rows: int


def keep_changes(folder: Path, to: str) -> Delta:
    """Replaces the program of an export by its changes, and fetches the exports that these need beside its folder.

    Args:
        folder: The folder of a whole export without its manifest.
        to: The directory of exports, any fsspec URL.

    Raises:
        WholeExportError: The export stays whole.
    """
    chain = _chain_before(folder, to)
    whole, last = (folder.parent / Path(export.directory).name for export in (chain[0], chain[-1]))
    _check_alike(last, folder)
    try:
        before = load(last, verify=True).tensors
    except ValueError as error:
        raise WholeExportError(str(error)) from error
    tensors = program_of(folder / PROGRAM)[1]
    _check_same_program(before, tensors, whole, last, folder)
    rows = _write_changes(before, tensors, folder)
    changed = sum(file.stat().st_size for file in folder.iterdir() if file.is_file() and file.name != PROGRAM)
    changed += sum(map(_bytes_of, chain[1:]))
    if changed > MOST * _bytes_of(chain[0]):
        for name in (CHANGES, INDEX):
            (folder / name).unlink()
        raise WholeExportError(f"{_mib(changed)} would have changed since {whole.name}, more than half of that export")
    (folder / PROGRAM).unlink()
    return Delta(chain[-1], rows)


def _chain_before(folder: Path, to: str) -> list[Export]:
    """Returns the chain of exports behind the one that current.json names, after fetching it beside the folder."""
    target = RunDirectory(to, "--to")
    with named("--to", to):
        current = current_or_none(target)
        if current is None:
            raise WholeExportError("there is no export before it")
        try:
            chain = read_chain(target.fs, target.path(current))
            for export in chain:
                bring(target.fs, export, folder.parent)
        except (ValueError, FileNotFoundError) as error:
            raise WholeExportError(str(error)) from error
    return chain


def _check_alike(last: Path, folder: Path) -> None:
    """Refuses a changed signature or changed rules, which changes do not contain."""
    try:
        theirs, ours = (json.loads((one / "signature.json").read_text()) for one in (last, folder))
    except ValueError as error:
        raise WholeExportError(f"signature.json of {last.name} is damaged: {error}") from error
    for key in sorted({*theirs, *ours} - {*OF_A_STEP}):
        if theirs.get(key) != ours.get(key):
            raise WholeExportError(f"'{key}' in signature.json differs from {last.name}'s")
    if _rules(last) != _rules(folder):
        raise WholeExportError(f"rules/ differs from {last.name}'s")


def _rules(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.glob("rules/*")}


def _check_same_program(
    before: dict[str, Tensor], tensors: dict[str, Tensor], whole: Path, last: Path, folder: Path
) -> None:
    """Refuses tensors of other names, types or shapes, and a program with other operations."""
    theirs, ours = ({name: _kind(tensor) for name, tensor in one.items()} for one in (before, tensors))
    if different := [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]:
        was, now = (of.get(different[0], "missing") for of in (theirs, ours))
        raise WholeExportError(f"a tensor of the program is {now}, in {last.name} {was}")
    if _graph(whole / PROGRAM) != _graph(folder / PROGRAM):
        raise WholeExportError(f"the program differs from {last.name}'s")


def _kind(tensor: Tensor) -> str:
    return f"{[*tensor.shape]} {str(tensor.dtype).removeprefix('torch.')}"


def _graph(file: Path) -> bytes:
    """Returns a program as text, equal for equal programs."""
    with zipfile.ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("models/model.json"))
        return archive.read(name)


def _write_changes(before: dict[str, Tensor], tensors: dict[str, Tensor], folder: Path) -> int:
    """Writes the values that differ and their index, and returns how many rows are written."""
    index: dict[str, dict[str, Any]] = {}
    with (folder / CHANGES).open("wb") as file:

        def write(tensor: Tensor) -> int:
            place = file.tell()
            file.write(_bits(tensor).numpy().data)
            file.write(bytes(-file.tell() % ALIGNED_BYTES))
            return place

        for name, tensor in tensors.items():
            rows = _changed_rows(before[name], tensor)
            if not len(rows):
                continue
            entry: dict[str, Any] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": [*tensor.shape]}
            if len(rows) * (tensor[:1].nbytes + rows.itemsize) < tensor.nbytes and tensor.nbytes > SMALL_BYTES:
                entry |= {"rows": len(rows), "numbers": write(rows), "values": write(tensor[rows])}
            else:
                entry["values"] = write(tensor)
            index[name] = entry
    (folder / INDEX).write_text(json.dumps({"tensors": index}, indent=1) + "\n")
    return sum(entry.get("rows", 0) for entry in index.values())


def _changed_rows(before: Tensor, after: Tensor) -> Tensor:
    """Returns the numbers of the rows that differ in any bit."""
    if not after.numel():
        return torch.empty(0, dtype=torch.int64)
    old, new = (_bits(tensor).view(len(tensor) if tensor.dim() else 1, -1) for tensor in (before, after))
    size = max(1, BLOCK_BYTES // new[:1].nbytes)
    differ = [rows_differ(one, other) for one, other in zip(old.split(size), new.split(size), strict=True)]
    return torch.cat(differ).nonzero().flatten()


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def _bytes_of(export: Export) -> int:
    return sum(entry["bytes"] for entry in export.files.values())


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
