"""The programs of a model whose tables are in shards: one tells the rows, one takes the embeddings of these."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from apps.export import load
from apps.export.features import Table
from apps.export.program import export_program, save_program
from apps.export.reference import Rows, parity, torchrec_answers
from apps.export.rules import ListedIds
from apps.export.served import Rules, names_of_list
from apps.export.shards import Shards, put_rows, renumbered, rows_of_samples
from apps.export.tables import replace_tables
from apps.export.weights import load_dense
from trainer.checkpoint.manifest import FileEntry
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.models.outputs import ModelOutput, compute_outputs, model_outputs


def write_in_shards(
    config: Config,
    shards: Shards,
    samples: list[Rows],
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
        rules: Returns the data rules for ids that are listed.
        listed: These ids.
        described: The signature, which is told of the tables.
        folder: Where to.

    Returns:
        The `parity` of the samples, and size and checksum of each file of the tables.
    """
    data, outputs, name = config.data, model_outputs(config), config.model.name
    model, needed = load_dense(config, shards.weights), rows_of_samples(samples, data)
    rows, entries = shards.write(folder, needed)
    described["shards"] = load.TABLES
    put_rows(model, rows)
    number = sum(len(part.batch.weights) for part in samples)
    written = parity(model, torchrec_answers, outputs, renumbered(samples, needed, data), number)
    replace_tables(model, data)
    _remove_tables(model)
    save_program(export_program(RowNumbers(rules(listed)), described, name), folder / load.ROWS)
    given = _embeddings(described, shards.columns(), data)
    looked_up = LookedUpModel(model, rules({}), outputs).eval()
    save_program(export_program(looked_up, described, name, given), folder / "model.pt2")
    return written, entries


class _LookedUp(nn.Module):
    """In the place of a table whose rows are in a server's files: the ids come with their embeddings."""

    def forward(self, embeddings: Tensor) -> Tensor:
        """Returns them."""
        return embeddings


def _remove_tables(model: nn.Module) -> None:
    """Takes the tables out of a model with plain tables, which then takes embeddings in the place of rows."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, Table):
            model.set_submodule(path, _LookedUp())


class RowNumbers(nn.Module):
    """The first program: the rows of ids.

    Args:
        rules: The data rules.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def forward(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the row of each id by sparse feature, for raw columns."""
        return {name: ids.rows for name, ids in self.rules(columns)[1].items()}


class LookedUpModel(nn.Module):
    """The second program: the model, for columns and the embeddings of their ids.

    Args:
        model: The model, without its tables.
        rules: The data rules, without the ids that are listed.
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
        found = {name: replace(one, rows=embeddings[name]) for name, one in ids.items()}
        return compute_outputs(self._outputs, self.model(dense, found))


def _embeddings(signature: dict[str, Any], columns: dict[str, int], data: DataConfig) -> list[dict[str, Any]]:
    """Returns the inputs of LookedUpModel beside the columns, as a signature describes inputs.

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
    ]
