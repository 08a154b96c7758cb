"""PEPNet: the domain scales the features, the user the towers of the tasks (Chang et al., arXiv:2302.01115)."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs
from trainer.models.gates import ScalingGate
from trainer.models.hidden_layers import hidden_layers
from trainer.models.pooled import ChosenColumns, PooledModel, by_prediction, feature_widths, vector_width


class PersonalTower(nn.Module):
    """Hidden layers, each of which a gate of its own scales, then a linear layer.

    Args:
        inputs: The inputs of the model's builder.
        known: Columns of what the gates see, `K`; 0 for a tower without gates.
        columns: Columns of the prediction, `C`.
    """

    def __init__(self, inputs: ModelInputs, known: int, columns: int) -> None:
        super().__init__()
        widths = [vector_width(inputs), *inputs.config.tower_layers]
        self.layers = nn.ModuleList(hidden_layers(inputs, width, [to]) for width, to in pairwise(widths))
        self.gates = nn.ModuleList(ScalingGate(inputs, known, width) for width in widths[1:] if known)
        self.head = nn.Linear(widths[-1], columns, device=inputs.device)

    def forward(self, vector: Tensor, known: Tensor | None) -> Tensor:
        """Returns logits `[B, C]` for vectors `[B, W]` and what the gates see, `[B, K]`."""
        for at, layer in enumerate(self.layers):
            vector = layer(vector)
            if known is not None:
                vector = vector * self.gates[at](known)
        return self.head(vector)


class PersonalizedTasks(nn.Module):
    """A tower for each prediction over the features of a sample, with gates before and in the towers.

    EPNet scales every column of the features by what the features of the domain are, such as the page that a sample is
    of. PPNet scales the hidden layers of each tower by the personal features, such as user and item. Gates also see all
    features, but do not train them through that.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        gates, width, widths = inputs.config.gates, vector_width(inputs), feature_widths(inputs)
        self._domain, self._personal = ChosenColumns(widths, gates.domain), ChosenColumns(widths, gates.personal)
        self.gate = ScalingGate(inputs, self._domain.width + width, width) if gates.domain else None
        known, columns = self._personal.width + width if gates.personal else 0, iter(inputs.columns)
        self.towers = by_prediction(inputs, lambda: PersonalTower(inputs, known, next(columns)))

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        features, known = vector, None
        if self.gate is not None:
            features = vector * self.gate(torch.cat([self._domain(vector), vector.detach()], dim=1))
        if self._personal.width:
            known = torch.cat([self._personal(vector), features.detach()], dim=1)
        return torch.cat([tower(features, known) for tower in self.towers.values()], dim=1)


def pepnet(inputs: ModelInputs) -> nn.Module:
    """Builds PEPNet."""
    return PooledModel(inputs, PersonalizedTasks(inputs))
