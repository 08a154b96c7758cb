"""Writes an export with tables in shards: files of rows that the loader maps into memory, and two programs.

The first program returns the rows of ids. The second takes the embeddings of these rows.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchx_recsys.apps.export import load
from torchx_recsys.apps.export.directory import SHARDS
from torchx_recsys.apps.export.features import Features, Table
from torchx_recsys.apps.export.load import TABLES
from torchx_recsys.apps.export.program import export_program, save_program
from torchx_recsys.apps.export.reference import SplitRows, rows_of_samples, trained_parity
from torchx_recsys.apps.export.rules import ListedIds
from torchx_recsys.apps.export.served import Rules, names_of_list
from torchx_recsys.apps.export.tables import replace_tables
from torchx_recsys.apps.export.weights import SavedWeights, load_dense
from trainer.checkpoint.store import FileEntry, add_to, entry_of
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.core.storage import as_file_name
from trainer.models.embeddings import table_of_weight
from trainer.models.outputs import ModelOutput, compute_outputs, model_outputs


@dataclass(frozen=True)
class TableShards:
    """The tables of a checkpoint, cut into files.

    Attributes:
        weights: The weights of the checkpoint.
        data: Names the tables.
        file_bytes: The largest size of a file.
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
            folder: The folder of the export.
            wanted: Numbers of rows in ascending order, by table.

        Returns:
            The wanted rows by table, and size and checksum of each file by name.
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
                "name": f"{SHARDS}/{as_file_name(table)}-{number:05d}-of-{count:05d}.bin",
                "first_row": number * at_most,
                "rows": min(at_most, rows - number * at_most),
            }
            for number in range(count)
        ]

    def _blocks(self, path: str, file: dict[str, Any]) -> Iterator[tuple[int, Tensor]]:
        return self.weights.blocks(path, file["first_row"], file["first_row"] + file["rows"])


def write_in_shards(
    config: Config,
    shards: TableShards,
    samples: list[SplitRows],
    rules: Callable[[Mapping[str, ListedIds]], Rules],
    listed: Mapping[str, ListedIds],
    described: dict[str, Any],
    folder: Path,
) -> tuple[dict[str, Any], dict[str, FileEntry]]:
    """Writes tables and programs.

    Args:
        config: The configuration.
        shards: The tables.
        samples: The parity rows.
        rules: Returns the data rules for listed ids.
        listed: The listed ids.
        described: The signature; gets an entry for the tables.
        folder: The folder of the export.

    Returns:
        The `parity` of the samples, and size and checksum of each table file.
    """
    data, outputs, name = config.data, model_outputs(config), config.model.name
    model = load_dense(config, shards.weights)
    rows, entries = shards.write(folder, rows_of_samples(samples, data))
    described["shards"] = load.TABLES
    written = trained_parity(model, rows, outputs, samples, data)
    replace_tables(model, data)
    _remove_tables(model)
    save_program(export_program(RowNumbers(rules(listed), data.raw), described, name), folder / load.ROWS)
    given = _embeddings(described, shards.columns(), data)
    looked_up = LookedUpModel(model, rules({}), outputs).eval()
    save_program(export_program(looked_up, described, name, given), folder / "model.pt2")
    return written, entries


def _picking(blocks: Iterable[tuple[int, Tensor]], wanted: Tensor, found: Tensor) -> Iterator[Tensor]:
    """Yields blocks of rows, and copies the wanted rows into `found`."""
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


class _GivenEmbeddings(nn.Module):
    """Replaces a table whose rows are in files; takes embeddings instead of rows."""

    def forward(self, embeddings: Tensor) -> Tensor:
        """Returns the embeddings."""
        return embeddings


def _remove_tables(model: nn.Module) -> None:
    """Removes plain tables from a model, which then takes embeddings instead of rows."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, Table):
            model.set_submodule(path, _GivenEmbeddings())


class RowNumbers(nn.Module):
    """The first program: the rows of ids.

    Args:
        rules: The data rules.
        raw: The sparse features without a table.
    """

    def __init__(self, rules: Rules, raw: Collection[str]) -> None:
        super().__init__()
        self.rules, self._raw = rules, raw

    def forward(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the row of each id by sparse feature, for raw columns."""
        return {name: ids.rows for name, ids in self.rules(columns)[1].items() if name not in self._raw}


class LookedUpModel(nn.Module):
    """The second program: the model, for columns and the embeddings of their ids.

    Args:
        model: The model, without its tables.
        rules: The data rules, without listed ids.
        outputs: The outputs.
    """

    def __init__(self, model: nn.Module, rules: Rules, outputs: list[ModelOutput]) -> None:
        super().__init__()
        self.model, self.rules = model, rules
        self._outputs = outputs

    def forward(self, columns: dict[str, Tensor], embeddings: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the outputs by name.

        Args:
            columns: Raw columns.
            embeddings: An embedding for each row that RowNumbers returns, by sparse feature, `[N, D]` float32.
        """
        dense, ids = self.rules(columns)
        found = {name: replace(one, rows=embeddings.get(name, one.rows)) for name, one in ids.items()}
        return compute_outputs(self._outputs, self.model(dense, Features(found, ids.samples)))


def _embeddings(signature: dict[str, Any], columns: dict[str, int], data: DataConfig) -> list[dict[str, Any]]:
    """Returns the inputs of LookedUpModel besides the columns, in the form of a signature.

    Args:
        signature: Describes the columns.
        columns: Columns of each table.
        data: Names the tables of features.
    """
    sizes = {entry["name"]: entry["shape"] for entry in signature["inputs"]}
    return [
        {
            "name": name,
            "dtype": "float32",
            "shape": [*sizes.get(names_of_list(name)[0], ["B"]), columns[data.table_of(name)]],
        }
        for name in data.sparse
        if name not in data.raw
    ]
