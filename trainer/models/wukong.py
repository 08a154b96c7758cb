"""Wukong: stacked factorization machines, whose order of products doubles with each layer (arXiv:2403.02545)."""

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs
from trainer.models.hidden_layers import tower
from trainer.models.pooled import FeatureVectors, PooledModel


class ProductBlock(nn.Module):
    """The factorization machine block: new vectors by hidden layers over the inner products of all pairs of vectors.

    Of the matrix of products `X X'` the layers see `X X' Y`, with learned `Y` of few columns: it grows with the number
    of vectors, not with its square.

    Args:
        inputs: The inputs of the model's builder.
        count: Number of vectors, `N`.
        dimension: Their size, `D`.
    """

    def __init__(self, inputs: ModelInputs, count: int, dimension: int) -> None:
        super().__init__()
        config = inputs.config.wukong
        self.project = nn.Linear(count, config.rank, bias=False, device=inputs.device)
        self.norm = nn.LayerNorm(count * config.rank, device=inputs.device)
        self.layers = tower(inputs, count * config.rank, config.hidden_layers, config.product_vectors * dimension)

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns `product_vectors` new vectors `[B, P, D]` for vectors `[B, N, D]`."""
        products = vectors @ self.project(vectors.transpose(1, 2))
        return self.layers(self.norm(products.flatten(1))).unflatten(1, (-1, vectors.shape[2]))


class WukongLayer(nn.Module):
    """New vectors of products beside linear combinations of the vectors, with a residual and a norm over each.

    The combinations keep the orders of products that the layers before have made.
    """

    def __init__(self, inputs: ModelInputs, count: int, dimension: int) -> None:
        super().__init__()
        config, device = inputs.config.wukong, inputs.device
        outputs = config.product_vectors + config.linear_vectors
        self.products = ProductBlock(inputs, count, dimension)
        self.combine = nn.Linear(count, config.linear_vectors, bias=False, device=device)
        self.residual = nn.Identity() if count == outputs else nn.Linear(count, outputs, bias=False, device=device)
        self.norm = nn.LayerNorm(dimension, device=device)

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns vectors `[B, P + L, D]` for vectors `[B, N, D]`."""
        by_column = vectors.transpose(1, 2)
        combined, residual = (layer(by_column).transpose(1, 2) for layer in (self.combine, self.residual))
        return self.norm(torch.cat([self.products(vectors), combined], dim=1) + residual)


class Wukong(nn.Module):
    """Layers over the vectors of the features, then hidden layers over all vectors."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, self.features = inputs.config.wukong, FeatureVectors(inputs)
        count, dimension = config.product_vectors + config.linear_vectors, self.features.dimension
        counts = [self.features.count, *[count] * (config.layers - 1)]
        self.layers = nn.Sequential(*(WukongLayer(inputs, one, dimension) for one in counts))
        self.over = tower(inputs, count * dimension, inputs.config.over_layers, sum(inputs.columns))

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        return self.over(self.layers(self.features(vector)).flatten(1))


def wukong(inputs: ModelInputs) -> nn.Module:
    """Builds Wukong."""
    return PooledModel(inputs, Wukong(inputs))
