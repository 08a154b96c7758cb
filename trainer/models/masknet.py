"""MaskNet: hidden layers whose inputs are multiplied by a mask of the sample (Wang et al., arXiv:2102.07619)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.base import ModelInputs
from trainer.models.gates import gate_layers
from trainer.models.hidden_layers import activation, tower
from trainer.models.pooled import FeatureVectors, PooledModel


class MaskBlock(nn.Module):
    """A hidden layer over `mask(e) * h`, for the embeddings `e` of a sample: a product of features before each sum.

    Args:
        inputs: The inputs of the model's builder.
        embeddings: Columns of the embeddings, `E`.
        width: Columns of what is masked, `W`.
        outputs: Columns of the hidden layer, `H`.
    """

    def __init__(self, inputs: ModelInputs, embeddings: int, width: int, outputs: int) -> None:
        super().__init__()
        self.mask = gate_layers(inputs, embeddings, width)
        self.layer = nn.Linear(width, outputs, bias=False, device=inputs.device)
        self.norm = nn.LayerNorm(outputs, device=inputs.device)
        self.activation, self.dropout = activation(inputs), inputs.dropout()

    def forward(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """Returns `[B, H]` for embeddings `[B, E]` and hidden values `[B, W]`."""
        return self.dropout(self.activation(self.norm(self.layer(self.mask(embeddings) * hidden))))


class NormalizedFeatures(nn.Module):
    """Scales the vector of each feature to a mean of 0 and a variance of 1, then by factors and summands of its own."""

    def __init__(self, features: FeatureVectors, device: torch.device) -> None:
        super().__init__()
        shape = features.count, features.dimension
        self.weight, self.bias = (nn.Parameter(made(shape, device=device)) for made in (torch.ones, torch.zeros))

    def forward(self, features: Tensor) -> Tensor:
        """Returns vectors `[B, F, D]` of features of the same shape."""
        return functional.layer_norm(features, features.shape[-1:]) * self.weight + self.bias


class MaskNet(nn.Module):
    """MaskBlocks side by side, or one over another, then hidden layers.

    In parallel, all see the normalized vectors of the features, and the hidden layers see all their outputs. In series,
    only the first one sees the vectors, and each other one the outputs of the block before; all masks are made from the
    vectors as they are.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config = inputs.config
        self._in_series, layers = config.mask_order == "serial", config.mask_layers
        self.features = FeatureVectors(inputs)
        self.norm = NormalizedFeatures(self.features, inputs.device)
        embeddings = self.features.count * self.features.dimension
        widths = [embeddings, *layers[:-1]] if self._in_series else [embeddings] * len(layers)
        self.blocks = nn.ModuleList(
            MaskBlock(inputs, embeddings, width, outputs) for width, outputs in zip(widths, layers, strict=True)
        )
        width = layers[-1] if self._in_series else sum(layers)
        self.over = tower(inputs, width, config.over_layers, sum(inputs.columns))

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        features = self.features(vector)
        embeddings, hidden = features.flatten(1), self.norm(features).flatten(1)
        if not self._in_series:
            return self.over(torch.cat([block(embeddings, hidden) for block in self.blocks], dim=1))
        for block in self.blocks:
            hidden = block(embeddings, hidden)
        return self.over(hidden)


def masknet(inputs: ModelInputs) -> nn.Module:
    """Builds MaskNet."""
    return PooledModel(inputs, MaskNet(inputs))
