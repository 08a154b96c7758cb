"""Loads the exported model of this directory; needs torch and nothing else.

from load import load

model = load()
print(model({"price": [1.5, None], "country": [7, 3]}))

A column is a list with a value for each sample, None where it is missing, or a tensor. Columns of strings are hashed
here, as numbers of 64 bits; every other rule is in the model. signature.json describes the columns.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

NO_ID = -(2**63)
BEYOND = {"log1p": -1.0, "log3": -3.0}  # what values must be above, by their transform


class ColumnError(ValueError):
    """A column that the model does not take; the message names it."""


def load(directory: str | Path = Path(__file__).parent, compiled: bool = False, verify: bool = False) -> "Model":
    """Returns the model of a directory.

    Args:
        directory: `step-N` of an export; this file's own if unset.
        compiled: Whether to run the compiled model, which an export with --compile has.
        verify: Whether to compare the checksums of all files, and not just their sizes.

    Raises:
        ValueError: The directory is no whole export, or a file is damaged.
    """
    return Model(Path(directory), compiled, verify)


class Model:
    """An exported model; a function from columns to outputs by name, which several threads may call at once.

    Args:
        directory: As for `load`.
        compiled: The same.
        verify: The same.

    Attributes:
        signature: What signature.json says: columns with their types and rules, inputs in order, outputs.
        run: Returns the outputs for `inputs`.
    """

    def __init__(self, directory: Path, compiled: bool, verify: bool) -> None:
        _check_files(directory, verify)
        self.signature: dict[str, Any] = json.loads((directory / "signature.json").read_text())
        self.run: Callable[[dict[str, Tensor]], dict[str, Tensor]]
        if "shards" in self.signature and not compiled:
            self.run = _InShards(directory)
        elif compiled:
            file = directory / "compiled.pt2"
            if not file.exists():
                raise ValueError(f"{directory} has no compiled model; export with --compile True")
            self.run = torch._inductor.aoti_load_package(str(file))
        else:
            self.run = torch.export.load(directory / "model.pt2").module()
        self._columns = {column["name"]: column for column in self.signature["columns"]}

    def __call__(self, columns: dict[str, Any]) -> dict[str, Tensor]:
        """Returns the outputs by name for columns.

        Raises:
            ColumnError: A column is missing, unknown, of another type or length, or has a value that is not allowed.
        """
        inputs = self.inputs(columns)
        with torch.inference_mode():
            return self.run(inputs)

    def inputs(self, columns: dict[str, Any]) -> dict[str, Tensor]:
        """Returns columns as the tensors that the model takes, in its order; the same errors."""
        for name in columns:
            if name not in self._columns:
                raise ColumnError(f"column '{name}' is unknown; the model takes {', '.join(self._columns)}")
        found: dict[str, Tensor] = {}
        lengths: dict[str, int] = {}
        for name, column in self._columns.items():
            if name not in columns:
                raise ColumnError(f"column '{name}' is missing; the model takes {', '.join(self._columns)}")
            values = columns[name]
            if isinstance(values, str | bytes | dict) or not hasattr(values, "__len__"):
                raise ColumnError(f"column '{name}' is a {type(values).__name__}; it must be a list of values")
            found |= _READ[column["kind"]](column, values)
            lengths[name] = len(values)
        return self._checked(found, lengths)

    def _checked(self, found: dict[str, Tensor], lengths: dict[str, int]) -> dict[str, Tensor]:
        first, rows = next(iter(lengths.items()))
        for name, length in lengths.items():
            if length != rows:
                raise ColumnError(f"column '{name}' has {length} values, but '{first}' has {rows}; make them equal")
        if rows == 0:
            raise ColumnError(f"column '{first}' is empty; send at least one sample")
        return {entry["name"]: found[entry["name"]] for entry in self.signature["inputs"]}


class _InShards:
    """A model whose tables are in files, which are mapped into memory: only the rows of a call are read.

    Args:
        directory: As for `load`.
    """

    def __init__(self, directory: Path) -> None:
        index = json.loads((directory / "tables.json").read_text())
        self._rows = torch.export.load(directory / "rows.pt2").module()
        self._model = torch.export.load(directory / "model.pt2").module()
        tables = [(_Table(directory, table), table["features"]) for table in index["tables"].values()]
        self._tables = {feature: table for table, features in tables for feature in features}

    def __call__(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = self._rows(inputs)
        return self._model(inputs, {name: self._tables[name](one) for name, one in rows.items()})


class _Table:
    def __init__(self, directory: Path, table: dict[str, Any]) -> None:
        dtype, self._columns = getattr(torch, table["dtype"]), table["columns"]
        self._starts = torch.tensor([file["first_row"] for file in table["files"]])
        self._files = [
            torch.from_file(str(directory / file["name"]), size=file["rows"] * self._columns, dtype=dtype)
            for file in table["files"]
        ]

    def __call__(self, rows: Tensor) -> Tensor:
        """Returns the embeddings of rows, `[N]` to `[N, D]` float32."""
        found = torch.empty(len(rows), self._columns)
        places = torch.searchsorted(self._starts, rows, right=True) - 1
        for place in places.unique().tolist():
            here = places == place
            found[here] = self._files[place].view(-1, self._columns)[rows[here] - self._starts[place]].float()
        return found


def _check_files(directory: Path, verify: bool) -> None:
    try:
        files = json.loads((directory / "manifest.json").read_text())["files"]
    except (OSError, ValueError, KeyError):
        raise ValueError(f"{directory} is no whole export: manifest.json, which is written last, is missing") from None
    for name, entry in files.items():
        file = directory / name
        if not file.exists() or file.stat().st_size != entry["bytes"] or (verify and _crc32(file) != entry["crc32"]):
            raise ValueError(f"{file} is damaged or missing; copy the directory again")


def _crc32(file: Path) -> int:
    total = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            total = zlib.crc32(block, total)
    return total


def _numbers(column: dict[str, Any], values: Any) -> dict[str, Tensor]:
    name = column["name"]
    if isinstance(values, Tensor):
        if values.dim() != 1 or values.is_complex():
            raise ColumnError(f"column '{name}' is a tensor {list(values.shape)} of {values.dtype}; it must be [B]")
        numbers = values.float()
    else:
        numbers = torch.tensor([_number(name, row, value) for row, value in enumerate(values)], dtype=torch.float64)
        numbers = numbers.float()
    transform = column["transform"]
    wrong = numbers.isinf() | (numbers <= BEYOND.get(transform, -math.inf))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ColumnError(
            f"column '{name}', row {row}: {values[row]} has no finite value under the transform '{transform}'"
        )
    return {name: numbers}


def _number(name: str, row: int, value: Any) -> float:
    if value is None:
        return math.nan
    if not isinstance(value, int | float) or value != value:
        raise ColumnError(f"column '{name}', row {row}: {_shown(value)} is not a number; None is a missing one")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _single(column: dict[str, Any], values: Any) -> dict[str, Tensor]:
    if isinstance(values, Tensor):
        ids = _of_tensor(column, values)
        known = ids[ids != NO_ID]
    else:
        ids = torch.tensor([_id(column, row, value) for row, value in enumerate(values)], dtype=torch.int64)
        known = ids[torch.tensor([value is not None for value in values], dtype=torch.bool)]
    _check_range(column, known)
    return {column["name"]: ids}


def _lists(column: dict[str, Any], values: Any) -> dict[str, Tensor]:
    ids: list[int] = []
    lengths = []
    for row, one in enumerate(values):
        if one is not None and (isinstance(one, str | bytes | dict) or not hasattr(one, "__iter__")):
            raise ColumnError(f"column '{column['name']}', row {row}: {_shown(one)} is not a list of ids")
        present = [value for value in (one.tolist() if isinstance(one, Tensor) else one or ()) if value is not None]
        if column.get("max_ids"):
            present = present[-column["max_ids"] :]
        ids += (_id(column, row, value) for value in present)
        lengths.append(len(present))
    found = torch.tensor(ids, dtype=torch.int64)
    _check_range(column, found)
    return {f"{column['name']}.values": found, f"{column['name']}.lengths": torch.tensor(lengths)}


def _id(column: dict[str, Any], row: int, value: Any) -> int:
    if value is None:
        return NO_ID
    if column["type"] == "string":
        if not isinstance(value, str):
            raise ColumnError(f"column '{column['name']}', row {row}: {_shown(value)} is not a string")
        return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little", signed=True)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ColumnError(f"column '{column['name']}', row {row}: {_shown(value)} is not an integer")
    low, high = (0, 2**64) if column["type"] == "uint64" else (-(2**63), 2**63)
    if not low <= value < high:
        raise ColumnError(f"column '{column['name']}', row {row}: {value} is not a number of type {column['type']}")
    return value - 2**64 if value >= 2**63 else value


def _of_tensor(column: dict[str, Any], values: Tensor) -> Tensor:
    if values.dim() != 1 or values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ColumnError(
            f"column '{column['name']}' is a tensor {list(values.shape)} of {values.dtype}; it must be [B] of int64"
        )
    return values.long()


def _check_range(column: dict[str, Any], ids: Tensor) -> None:
    if column["rule"] != "error":
        return
    wrong = ids[(ids < 0) | (ids >= column["rows"])]
    if len(wrong):
        raise ColumnError(f"column '{column['name']}': id {wrong[0].item()} is outside [0, {column['rows']})")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


_READ = {"number": _numbers, "id": _single, "list": _lists}
