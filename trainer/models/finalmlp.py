"""FinalMLP: two streams of hidden layers, fused by their products (Mao et al., arXiv:2304.00902)."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs
from trainer.models.gates import ScalingGate
from trainer.models.hidden_layers import hidden_layers
from trainer.models.pooled import ChosenColumns, FeatureVectors, PooledModel, feature_widths


class Stream(nn.Module):
    """Hidden layers over the features, each column of which a gate has scaled.

    The gate sees some of the features, such as those of the user; without any, a learned vector, so that it weighs the
    columns alike for all samples.

    Args:
        inputs: The inputs of the model's builder.
        features: The vectors of the features.
        names: The features that the gate sees.
        layers: Number of columns of each hidden layer.
    """

    def __init__(
        self, inputs: ModelInputs, features: FeatureVectors, names: Collection[str], layers: list[int]
    ) -> None:
        super().__init__()
        width, dimension = features.count * features.dimension, features.dimension
        widths = {name: dimension * inputs.dense_vectors.get(name, 1) for name in feature_widths(inputs)}
        self._seen = ChosenColumns(widths, names) if names else None
        self.seen = None if names else nn.Parameter(torch.zeros(1, dimension, device=inputs.device))
        self.gate = ScalingGate(inputs, self._seen.width if self._seen else dimension, width)
        self.layers = hidden_layers(inputs, width, layers)

    def forward(self, vector: Tensor) -> Tensor:
        """Returns the last hidden vector `[B, H]` for the vectors of all features, `[B, F * D]`."""
        return self.layers(vector * self.gate(self._seen(vector) if self._seen else self.seen))


class Fusion(nn.Module):
    """Logits are linear in two vectors and bilinear in each pair of their heads: `b + u x + v y + sum_h x_h' W_h y_h`.

    Heads pair a part of one vector with the same part of the other, which takes fewer weights than all pairs.

    Args:
        inputs: The inputs of the model's builder.
        first: Columns of the first vector, `X`.
        second: Columns of the second vector, `Y`.
    """

    def __init__(self, inputs: ModelInputs, first: int, second: int) -> None:
        super().__init__()
        self._heads, outputs, device = inputs.config.fusion_heads, sum(inputs.columns), inputs.device
        self.first = nn.Linear(first, outputs, device=device)
        self.second = nn.Linear(second, outputs, bias=False, device=device)
        shape = self._heads, first // self._heads, second // self._heads * outputs
        self.products = nn.Parameter(torch.empty(shape, device=device))
        for weight in self.products:
            nn.init.xavier_normal_(weight)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns logits `[B, T]` for vectors `[B, X]` and `[B, Y]`."""
        linear = self.first(first) + self.second(second)
        ones, others = (vector.unflatten(1, (self._heads, -1)) for vector in (first, second))
        mapped = torch.einsum("bhx,hxo->bho", ones, self.products).unflatten(2, (others.shape[2], -1))
        return linear + torch.einsum("bhyt,bhy->bt", mapped, others)


class TwoStreams(nn.Module):
    """Two streams that see the features by different gates, and their fusion."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, self.features = inputs.config, FeatureVectors(inputs)
        layers = config.over_layers, config.second_layers or config.over_layers
        self.first = Stream(inputs, self.features, config.gates.first, layers[0])
        self.second = Stream(inputs, self.features, config.gates.second, layers[1])
        self.fusion = Fusion(inputs, layers[0][-1], layers[1][-1])

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        features = self.features(vector).flatten(1)
        return self.fusion(self.first(features), self.second(features))


def finalmlp(inputs: ModelInputs) -> nn.Module:
    """Builds FinalMLP."""
    return PooledModel(inputs, TwoStreams(inputs))
