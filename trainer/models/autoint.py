"""AutoInt: self-attention among the features of a sample (Song et al., arXiv:1810.11921)."""

from torch import Tensor, nn
from torch.nn import functional

from trainer.models.base import ModelInputs
from trainer.models.hidden_layers import activation, tower
from trainer.models.pooled import FeatureVectors, PooledModel, vector_width


class InteractingLayer(nn.Module):
    """Each feature sees all features, by attention of several heads; then a residual and an activation.

    As in the paper, the inner products of queries and keys are not scaled.
    """

    def __init__(self, inputs: ModelInputs, dimension: int) -> None:
        super().__init__()
        config = inputs.config
        self._heads = config.attention_heads
        # Queries, keys, values and the residual at once.
        self.project = nn.Linear(dimension, 4 * config.attention_dim, bias=False, device=inputs.device)
        self.activation, self.dropout = activation(inputs), inputs.dropout()

    def forward(self, features: Tensor) -> Tensor:
        """Returns vectors `[B, F, attention_dim]` of features `[B, F, D]`."""
        *attended, residual = self.project(features).chunk(4, dim=2)
        by_head = [part.unflatten(2, (self._heads, -1)).transpose(1, 2) for part in attended]
        seen = functional.scaled_dot_product_attention(*by_head, scale=1.0)
        return self.dropout(self.activation(seen.transpose(1, 2).flatten(2) + residual))


class AutomaticInteraction(nn.Module):
    """Logits are linear in what the interacting layers make of all features, plus the output of hidden layers.

    Without `over_layers` there are no hidden layers: the paper's AutoInt; with them, its AutoInt+.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, outputs = inputs.config, sum(inputs.columns)
        self.features = FeatureVectors(inputs)
        dimensions = [self.features.dimension, *[config.attention_dim] * (config.attention_blocks - 1)]
        self.layers = nn.Sequential(*(InteractingLayer(inputs, dimension) for dimension in dimensions))
        self.head = nn.Linear(self.features.count * config.attention_dim, outputs, device=inputs.device)
        layers = config.over_layers
        self.deep = tower(inputs, vector_width(inputs), layers, outputs) if layers else None

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        logits = self.head(self.layers(self.features(vector)).flatten(1))
        return logits if self.deep is None else logits + self.deep(vector)


def autoint(inputs: ModelInputs) -> nn.Module:
    """Builds AutoInt."""
    return PooledModel(inputs, AutomaticInteraction(inputs))
