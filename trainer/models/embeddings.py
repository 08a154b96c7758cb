"""Embedding tables: their configuration, and names in a model, which no other file knows."""

import re
from typing import Any

import torch
from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from trainer.config.data import DataConfig
from trainer.config.model import ModelConfig
from trainer.core.errors import InputError

# TorchRec's names of parameters: `embedding_bags.TABLE.weight` of pooled features, `embeddings.TABLE.weight` of
# sequences. Models have dense layers called `embeddings`, too, so that a collection has to be `sequences`.
TABLE_WEIGHT = re.compile(r"(?:.+\.)?(?:embedding_bags|sequences\.embeddings)\.(?P<table>[^.]+)\.weight")
# Tables and predictions are keys of a ModuleDict. These must not contain dots, which columns of nested data have, and
# must not be its attributes, such as `type` and `values`, or part of a pattern above. A dot becomes `%2E`; a name that
# looks escaped is escaped once more.
ESCAPED = "%"
LIKE_A_DOT, DOT = re.compile("%(?=(?:25)*2E)"), re.compile("%(?:25)?((?:25)*2E)")


def table_configs(data: DataConfig, model: ModelConfig) -> list[EmbeddingBagConfig]:
    """Returns the tables of pooled features alone."""
    return [
        EmbeddingBagConfig(pooling=_pooling(data, names[0]), **options)
        for names, options in _tables(data, model)
        if data.sequences.keys().isdisjoint(names)
    ]


def _pooling(data: DataConfig, feature: str) -> PoolingType:
    # A batch's weights make weighted sums of means, too.
    return PoolingType.SUM if data.has_id_weights else PoolingType[data.sparse[feature].pooling.upper()]


def sequence_configs(data: DataConfig, model: ModelConfig) -> list[EmbeddingConfig]:
    """Returns the tables of sequences, some of which serve pooled features, too."""
    return [
        EmbeddingConfig(**options)
        for names, options in _tables(data, model)
        if not data.sequences.keys().isdisjoint(names)
    ]


def _tables(data: DataConfig, model: ModelConfig) -> list[tuple[list[str], dict[str, Any]]]:
    """Returns the features of every table, with the options that both kinds of tables share."""
    return [
        (
            names,
            {
                "name": name_in_model(table),
                "num_embeddings": data.sparse[names[0]].rows,
                "embedding_dim": data.sparse[names[0]].dimension or model.embedding_dim,
                "feature_names": names,
                "data_type": DataType[model.precision_of(table).upper()],
            },
        )
        for table, names in data.features_of_tables().items()
    ]


def collections(
    data: DataConfig, model: ModelConfig, device: torch.device
) -> tuple[EmbeddingBagCollection, EmbeddingCollection | None]:
    """Returns the tables of pooled features, `NoTables` without any, and those of sequences, None without any."""
    # One collection of each kind, as TorchRec fuses the lookups and the exchanges of its tables.
    tables = table_configs(data, model)
    kind = EmbeddingBagCollection if tables else NoTables
    pooled = kind(tables=tables, is_weighted=data.has_id_weights, device=device)
    unpooled = sequence_configs(data, model)
    return pooled, EmbeddingCollection(tables=unpooled, device=device) if unpooled else None


class NoTables(EmbeddingBagCollection):
    """The tables of pooled features where there are none. TorchRec does not shard this class: no sharder names it."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Returns no embeddings, `[B, 0]`."""
        return KeyedTensor([], [], torch.empty(features.stride(), 0, device=features.lengths().device))


def check_names(model: nn.Module) -> None:
    """Refuses a model whose tables of sequences would be mistaken for dense weights.

    Raises:
        InputError: The model keeps their collection under another name than `sequences`.
    """
    for path, module in model.named_modules():
        if isinstance(module, EmbeddingCollection) and path.rpartition(".")[2] != "sequences":
            raise InputError(
                f"model.name: the model keeps ModelInputs.sequences as '{path}', and checkpoints know tables by the "
                "name 'sequences'; keep it as self.sequences"
            )


def table_of_weight(name: str) -> str | None:
    """Returns the table that a parameter is the weight of, None for a dense parameter."""
    found = TABLE_WEIGHT.fullmatch(name)
    return table_of_name(found["table"]) if found else None


def name_in_model(table: str) -> str:
    """Returns a table's name in a model, its plan and checkpoints, where some names are not allowed."""
    name = LIKE_A_DOT.sub("%25", table).replace(".", "%2E")
    taken = table.startswith(ESCAPED) or table == "embedding_bags" or hasattr(nn.ModuleDict(), table)
    return ESCAPED + name if taken else name


def table_of_name(name: str) -> str:
    """Returns the table with this name in a model."""
    return DOT.sub(lambda found: "." if found[0] == "%2E" else f"%{found[1]}", name).removeprefix(ESCAPED)


def table_shapes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns rows and columns of every table of an unsharded model, by table."""
    return {
        table: (parameter.shape[0], parameter.shape[1])
        for name, parameter in model.named_parameters()
        if (table := table_of_weight(name))
    }


def value_bytes(model: nn.Module) -> dict[str, int]:
    """Returns the bytes of a value of every table, by table."""
    return {
        table: parameter.element_size()
        for name, parameter in model.named_parameters()
        if (table := table_of_weight(name))
    }
