"""Tables in shards: files of rows, which a server maps into memory, and samples that need a few of the rows."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor, nn

from apps.export.directory import SHARDS
from apps.export.load import TABLES
from apps.export.reference import Rows
from apps.export.weights import SavedWeights
from trainer.checkpoint.manifest import FileEntry, add_to, entry_of
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.batch import Batch
from trainer.data.jagged import with_values
from trainer.models.embeddings import table_of_weight

LONGEST_NAME = 200


@dataclass(frozen=True)
class Shards:
    """The tables of a checkpoint, cut into files.

    Attributes:
        weights: The weights.
        data: Names the tables.
        file_bytes: Bytes of a file at most.
    """

    weights: SavedWeights
    data: DataConfig
    file_bytes: int

    def __post_init__(self) -> None:
        for table, path in self._paths().items():
            if self._row_bytes(path) > self.file_bytes:
                raise InputError(
                    f"--shard-bytes is {self.file_bytes}, but a row of table '{table}' has {self._row_bytes(path)} "
                    "bytes; set it to at least that"
                )

    def write(self, folder: Path, wanted: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, FileEntry]]:
        """Writes all files and their index.

        Args:
            folder: The export's.
            wanted: Numbers of rows in ascending order, by table.

        Returns:
            The wanted rows by table, and size and checksum of each file, by its name in the folder.
        """
        (folder / SHARDS).mkdir()
        index, found, entries = {}, {}, {}
        for table, path in self._paths().items():
            rows, columns = self.weights.shapes[path]
            files = self._files(table, path)
            found[table] = torch.empty((len(wanted[table]), columns), dtype=self.weights.dtype(path))
            for file in files:
                blocks = _picking(self._blocks(path, file), wanted[table], found[table])
                entries[file["name"]] = _write(folder / file["name"], blocks)
            index[table] = {
                "rows": rows,
                "columns": columns,
                "dtype": str(self.weights.dtype(path)).removeprefix("torch."),
                "features": self.data.features_of_tables()[table],
                "files": files,
            }
        (folder / TABLES).write_text(json.dumps({"tables": index}, indent=1) + "\n")
        return found, entries

    def columns(self) -> dict[str, int]:
        """Returns the columns of each table."""
        return {table: self.weights.shapes[path][1] for table, path in self._paths().items()}

    def _paths(self) -> dict[str, str]:
        named = ((table_of_weight(path), path) for path in self.weights.shapes)
        return {table: path for table, path in named if table is not None}

    def _row_bytes(self, path: str) -> int:
        return self.weights.shapes[path][1] * self.weights.dtype(path).itemsize

    def _files(self, table: str, path: str) -> list[dict[str, Any]]:
        rows, at_most = self.weights.shapes[path][0], self.file_bytes // self._row_bytes(path)
        count = -(-rows // at_most)
        return [
            {
                "name": f"{SHARDS}/{_as_file(table)}-{number:05d}-of-{count:05d}.bin",
                "first_row": number * at_most,
                "rows": min(at_most, rows - number * at_most),
            }
            for number in range(count)
        ]

    def _blocks(self, path: str, file: dict[str, Any]) -> Iterator[tuple[int, Tensor]]:
        return self.weights.blocks(path, file["first_row"], file["first_row"] + file["rows"])


def _as_file(table: str) -> str:
    """Returns a table's name as one of a file, which has at most 255 bytes."""
    name = quote(table, safe="")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{sha256(table.encode()).hexdigest()[:16]}"


def _picking(blocks: Iterable[tuple[int, Tensor]], wanted: Tensor, found: Tensor) -> Iterator[Tensor]:
    """Yields blocks of rows, and keeps those that are wanted."""
    for start, block in blocks:
        here = (wanted >= start) & (wanted < start + len(block))
        found[here] = block[wanted[here] - start]
        yield block


def _write(file: Path, blocks: Iterable[Tensor]) -> FileEntry:
    entry = entry_of(b"")
    with file.open("wb") as sink:
        for block in blocks:
            content = block.view(torch.uint8).numpy().data
            sink.write(content)
            add_to(entry, content)
    return entry


def rows_of_samples(samples: list[Rows], data: DataConfig) -> dict[str, Tensor]:
    """Returns the rows that samples need of each table, at least one, in ascending order."""
    found = {}
    for table, names in data.features_of_tables().items():
        ids = [part.batch.sparse[name].values().long() for part in samples for name in names]
        found[table] = torch.cat([torch.zeros(1, dtype=torch.int64), *ids]).unique()
    return found


def renumbered(samples: list[Rows], rows: dict[str, Tensor], data: DataConfig) -> Iterator[Rows]:
    """Yields samples for tables that have these rows only."""
    for part in samples:
        yield Rows(part.columns, _renumbered(part.batch, rows, data))


def _renumbered(batch: Batch, rows: dict[str, Tensor], data: DataConfig) -> Batch:
    sparse, names = batch.sparse, batch.sparse.keys()
    values = [torch.searchsorted(rows[data.table_of(name)], sparse[name].values().long()) for name in names]
    return replace(batch, sparse=with_values(sparse, torch.cat(values)))


def put_rows(model: nn.Module, rows: dict[str, Tensor]) -> None:
    """Gives a model with TorchRec's tables some rows of each as its tables."""
    for path, _ in [*model.named_parameters(remove_duplicate=False)]:
        if table := table_of_weight(path):
            module = model.get_submodule(path.rpartition(".")[0])
            module.weight = nn.Parameter(rows[table], requires_grad=False)
