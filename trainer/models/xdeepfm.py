"""xDeepFM: products of features of every order up to a bound, vector by vector (Lian et al., arXiv:1803.05170)."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs
from trainer.models.deepfm import WideAndDeep
from trainer.models.pooled import FeatureVectors, PooledModel


class CompressedInteraction(nn.Module):
    """The compressed interaction network: layer `k` mixes the products of its inputs with the features' vectors.

    Each vector of a layer is a weighted sum, over all pairs of a vector of the layer before and a feature's vector, of
    their elementwise products: a polynomial of degree `k + 1`. There is no activation. The sums of all vectors of all
    layers are what the logits are linear in.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self.features, layers = FeatureVectors(inputs), inputs.config.cin_layers
        count, device = self.features.count, inputs.device
        widths = pairwise([count, *layers])
        self.layers = nn.ModuleList(nn.Linear(width * count, out, bias=False, device=device) for width, out in widths)
        self.head = nn.Linear(sum(layers), sum(inputs.columns), bias=False, device=device)

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        # Features last, `[B, D, F]`, so that a layer's weights meet the products without a copy of them.
        hidden = features = self.features(vector).transpose(1, 2)
        sums = []
        for layer in self.layers:
            hidden = layer((hidden[:, :, :, None] * features[:, :, None, :]).flatten(2))
            sums.append(hidden.sum(dim=1))
        return self.head(torch.cat(sums, dim=1))


class ExtremeDeepFactorizationMachine(nn.Module):
    """Wide & Deep plus the compressed interaction network."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self.wide_and_deep, self.interaction = WideAndDeep(inputs), CompressedInteraction(inputs)

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        _, others = self.wide_and_deep.columns.split(vector)
        return self.wide_and_deep(vector) + self.interaction(others)


def xdeepfm(inputs: ModelInputs) -> nn.Module:
    """Builds xDeepFM."""
    return PooledModel(inputs, ExtremeDeepFactorizationMachine(inputs))
