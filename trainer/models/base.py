"""The model protocol: the inputs and the result of a model builder."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trainer.config.model import ModelConfig


@dataclass(frozen=True)
class ModelInputs:
    """Inputs of a model builder.

    Attributes:
        tables: The embedding tables, on the meta device; the model must use this very module.
        dense_features: Dense features, `D`.
        sparse_features: Names of the sparse features, the keys of the `KeyedJaggedTensor`.
        labels: Outputs to give, `T`.
        device: Device of the dense parameters.
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

The module must be traceable by torch.fx down to the tables, as TorchRec's pipeline moves their input distribution out
of it: no branch on the values of its inputs.
"""
