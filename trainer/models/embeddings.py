"""Embedding tables: built from configuration, and the one place that knows what they are called inside a model."""

import re

from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trainer.config.data import DataConfig
from trainer.config.model import ModelConfig

TABLE_WEIGHT = re.compile(r"(?:.+\.)?embedding_bags\.(?P<table>[^.]+)\.weight")  # TorchRec's names of parameters
# TorchRec holds tables in a ModuleDict. Its keys must not contain dots, which columns of nested data have, and must not
# be its attributes, such as `type` and `values`.
ESCAPED_DOT, ESCAPED_ATTRIBUTE = "%2E", "%"


def table_configs(data: DataConfig, model: ModelConfig) -> list[EmbeddingBagConfig]:
    """Returns the embedding tables that the data's sparse features look their ids up in."""
    return [
        EmbeddingBagConfig(
            name=name_in_model(table),
            num_embeddings=data.sparse[names[0]].rows,
            embedding_dim=data.sparse[names[0]].dimension or model.embedding_dim,
            feature_names=names,
            pooling=PoolingType[data.sparse[names[0]].pooling.upper()],
            data_type=DataType[model.table_precision.upper()],
        )
        for table, names in data.features_of_tables().items()
    ]


def table_of_weight(name: str) -> str | None:
    """Returns the table whose weight a parameter `...embedding_bags.TABLE.weight` is, None for a dense parameter."""
    found = TABLE_WEIGHT.fullmatch(name)
    return table_of_name(found["table"]) if found else None


def name_in_model(table: str) -> str:
    """Returns the name of a table in a model, in its plan and in checkpoints, where not every name is allowed."""
    name = table.replace(".", ESCAPED_DOT)
    return ESCAPED_ATTRIBUTE + name if hasattr(nn.ModuleDict(), name) else name


def table_of_name(name: str) -> str:
    """Returns the table that has a name in a model."""
    return name.replace(ESCAPED_DOT, ".").removeprefix(ESCAPED_ATTRIBUTE)


def table_shapes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns rows and columns of every table of an unsharded model, by table."""
    return {
        table: (parameter.shape[0], parameter.shape[1])
        for name, parameter in model.named_parameters()
        if (table := table_of_weight(name))
    }


def value_bytes(model: nn.Module) -> int:
    """Returns the bytes of each value of the tables, which all have one precision."""
    return next(parameter.element_size() for name, parameter in model.named_parameters() if table_of_weight(name))


def embedding_collections(model: nn.Module) -> list[EmbeddingBagCollection]:
    """Returns the unsharded modules that hold the tables."""
    return [module for module in model.modules() if isinstance(module, EmbeddingBagCollection)]
