"""Models over one vector for each sample: its dense features and the pooled embeddings of its sparse ones."""

from collections.abc import Callable, Collection, Mapping

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


def feature_widths(inputs: ModelInputs) -> dict[str, int]:
    """Returns the width of each feature in the vector of a sample, in order."""
    of_tables = {
        feature: table.embedding_dim
        for table in inputs.tables.embedding_bag_configs()
        for feature in table.feature_names
    }
    of_dense = dict.fromkeys(inputs.dense_names, 1) | {**inputs.dense_vectors}
    return of_dense | {name: of_tables[name] for name in inputs.sparse_features}


class ChosenColumns:
    """The columns of some features in the vector of a sample.

    Args:
        widths: The width of each feature in the vector, in order.
        names: Names of the features.
    """

    def __init__(self, widths: Mapping[str, int], names: Collection[str]) -> None:
        self._widths, self._chosen = [*widths.values()], [name in names for name in widths]
        self.width = sum(width for name, width in widths.items() if name in names)

    def __call__(self, vector: Tensor) -> Tensor:
        """Returns the columns `[B, C]` of vectors `[B, W]`, in the order of the vector."""
        parts = zip(vector.split(self._widths, dim=1), self._chosen, strict=True)
        return torch.cat([part for part, chosen in parts if chosen], dim=1)


class FeatureVectors(nn.Module):
    """The vectors of a sample's features, all of one dimension, for networks that let features interact.

    A sparse feature's vector is its pooled embedding, without the columns of `model.first_order_columns`; a dense
    feature's vector is its value times a learned vector, so that a dense vector makes one for each of its places.

    Args:
        inputs: The inputs of the model's builder.

    Attributes:
        count: Number of features, `F`.
        dimension: Size of each vector, `D`.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self._dense = inputs.dense_features
        self.dimension = equal_dimension(inputs) - inputs.config.first_order_columns
        self.count = self._dense + len(inputs.sparse_features)
        directions = torch.randn(self._dense, self.dimension, device=inputs.device) / self.dimension**0.5
        self.directions = nn.Parameter(directions) if self._dense else None

    def forward(self, vector: Tensor) -> Tensor:
        """Returns the vectors `[B, F, D]` of samples `[B, W]`, dense features first."""
        embeddings = vector[:, self._dense :].unflatten(1, (-1, self.dimension))
        if self.directions is None:
            return embeddings
        dense = vector[:, : self._dense, None].detach()  # whose gradient nobody needs
        return torch.cat([dense * self.directions, embeddings], dim=1)


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
