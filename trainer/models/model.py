"""From configuration to a model: the built-in ones, and any function that keeps to one small protocol."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydantic
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trainer.data.schema import DataConfig
from trainer.models.dlrm import dlrm, dlrm_dcn
from trainer.section import Section, nearest


class ModelConfig(Section):
    """The model between the data and the logits."""

    name: str = "dlrm"
    """dlrm, dlrm_dcn, or package.module:function for a model of your own (see docs/configuration.md)."""
    embedding_dim: pydantic.PositiveInt = 64
    """Columns of every table that does not set its own; dlrm and dlrm_dcn need them all equal."""
    dense_layers: list[pydantic.PositiveInt] = [512, 256]
    """Hidden layers over the dense features; one of embedding_dim follows."""
    over_layers: list[pydantic.PositiveInt] = [512, 512, 256]
    """Hidden layers over the interactions; one with an output per label follows."""
    cross_layers: pydantic.PositiveInt = 3
    """Cross layers of dlrm_dcn."""
    cross_rank: pydantic.PositiveInt = 512
    """Rank of the low-rank cross layers of dlrm_dcn."""
    arguments: dict[str, Any] = {}
    """Anything that a model of your own wants to know."""


@dataclass(frozen=True)
class ModelInputs:
    """What a model is built from.

    Attributes:
        tables: The embedding tables, on the meta device; the model must use this very module.
        dense_features: Dense features, `D`.
        sparse_features: Names of the sparse features, the keys of the `KeyedJaggedTensor`.
        labels: Outputs to give, `T`.
        device: Where the dense parameters belong.
        config: The model's section of the configuration.
    """

    tables: EmbeddingBagCollection
    dense_features: int
    sparse_features: list[str]
    labels: int
    device: torch.device
    config: ModelConfig


ModelBuilder = Callable[[ModelInputs], nn.Module]
"""Builds a module whose `forward(dense [B, D], sparse: KeyedJaggedTensor)` returns logits `[B, T]`.

The module must be traceable by torch.fx down to the tables: no branch on the values of its inputs.
"""

BUILDERS: dict[str, ModelBuilder] = {"dlrm": dlrm, "dlrm_dcn": dlrm_dcn}


def table_configs(data: DataConfig, model: ModelConfig) -> list[EmbeddingBagConfig]:
    """Returns the embedding tables that the data's sparse features look their ids up in."""
    features: dict[str, list[str]] = {}
    for name in data.sparse:
        features.setdefault(data.table_of(name), []).append(name)
    return [
        EmbeddingBagConfig(
            name=table,
            num_embeddings=data.sparse[names[0]].rows,
            embedding_dim=data.sparse[names[0]].dimension or model.embedding_dim,
            feature_names=names,
            pooling=PoolingType[data.sparse[names[0]].pooling.upper()],
        )
        for table, names in features.items()
    ]


def build_model(data: DataConfig, model: ModelConfig, device: torch.device) -> nn.Module:
    """Builds the model with its tables on the meta device.

    Raises:
        ValueError: The model's name is unknown, or the model cannot be built from these features.
    """
    if not data.sparse:
        raise ValueError("data.sparse is empty; a sharded model needs at least one sparse feature")
    builder = _builder(model.name)
    tables = EmbeddingBagCollection(tables=table_configs(data, model), device=torch.device("meta"))
    return builder(ModelInputs(tables, len(data.dense), list(data.sparse), len(data.labels), device, model))


def _builder(name: str) -> ModelBuilder:
    if name in BUILDERS:
        return BUILDERS[name]
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"model.name is '{name}'{nearest(name, BUILDERS)}, or package.module:function for your own")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"model.name is '{name}', which cannot be imported: {error}") from error
