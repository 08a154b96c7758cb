"""Models over one vector for each sample: its dense features and the pooled embeddings of its sparse ones."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.core.errors import InputError
from trainer.models.base import ModelInputs, Predictions
from trainer.models.embeddings import name_in_model


class PooledModel(nn.Module):
    """Tables and a network over the vector of each sample: its dense features, then a pooled embedding per feature.

    Args:
        inputs: The inputs of the model's builder.
        network: Returns predictions for vectors `[B, W]`. As a module without tables it is not traced, and may branch.
    """

    def __init__(self, inputs: ModelInputs, network: nn.Module) -> None:
        super().__init__()
        self.tables, self.network = inputs.tables, network

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor | Predictions:
        """Returns the network's predictions for dense features `[B, D]` and sparse features."""
        return self.network(torch.cat([dense, self.tables(sparse).values()], dim=1))


def vector_width(inputs: ModelInputs) -> int:
    """Returns the width of the vector of a sample, `W`."""
    tables = inputs.tables.embedding_bag_configs()
    width = inputs.dense_features + sum(table.embedding_dim * len(table.feature_names) for table in tables)
    return width + (len(inputs.pooled_sequences) * inputs.sequences.embedding_dim() if inputs.sequences else 0)


def equal_dimension(inputs: ModelInputs) -> int:
    """Returns the dimension of all tables, for models that multiply embeddings with each other.

    Raises:
        InputError: A table has another dimension.
    """
    config = inputs.config
    for table in inputs.tables.embedding_bag_configs():
        if table.embedding_dim != config.embedding_dim:
            raise InputError(
                f"data.sparse.{table.feature_names[0]}.dimension is {table.embedding_dim}, but model.name "
                f"'{config.name}' needs every table to have model.embedding_dim = {config.embedding_dim}"
            )
    return config.embedding_dim


def by_prediction(inputs: ModelInputs, make: Callable[[], nn.Module]) -> nn.ModuleDict:
    """Returns a module for each prediction, in order."""
    return nn.ModuleDict({name_in_model(prediction): make() for prediction in inputs.predictions})


def columns_that_share(inputs: ModelInputs) -> Tensor:
    """Returns 1 for the columns that get a term shared by all predictions, `[columns]`: the last one of each."""
    shares = [share for columns in inputs.columns for share in (*[0.0] * (columns - 1), 1.0)]
    return torch.tensor(shares, device=inputs.device)
