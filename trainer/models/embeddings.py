"""Embedding tables: built from configuration, and the one place that knows what they are called inside a model."""

import re

from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trainer.config.data import DataConfig
from trainer.config.model import ModelConfig

TABLE_WEIGHT = re.compile(r"(?:.+\.)?embedding_bags\.(?P<table>[^.]+)\.weight")  # TorchRec's names of parameters


def table_configs(data: DataConfig, model: ModelConfig) -> list[EmbeddingBagConfig]:
    """Returns the embedding tables that the data's sparse features look their ids up in."""
    return [
        EmbeddingBagConfig(
            name=table,
            num_embeddings=data.sparse[names[0]].rows,
            embedding_dim=data.sparse[names[0]].dimension or model.embedding_dim,
            feature_names=names,
            pooling=PoolingType[data.sparse[names[0]].pooling.upper()],
        )
        for table, names in data.features_of_tables().items()
    ]


def table_of_weight(name: str) -> str | None:
    """Returns the table whose weight a parameter `...embedding_bags.TABLE.weight` is, None for a dense parameter."""
    found = TABLE_WEIGHT.fullmatch(name)
    return found["table"] if found else None


def table_shapes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Returns rows and columns of every table of an unsharded model, by table."""
    return {
        table: (parameter.shape[0], parameter.shape[1])
        for name, parameter in model.named_parameters()
        if (table := table_of_weight(name))
    }


def embedding_collections(model: nn.Module) -> list[EmbeddingBagCollection]:
    """Returns the unsharded modules that hold the tables."""
    return [module for module in model.modules() if isinstance(module, EmbeddingBagCollection)]
