"""DBMTL, deep Bayesian multi-target learning: tasks that depend on each other (Wang et al., arXiv:1902.09154)."""

from graphlib import TopologicalSorter

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs
from trainer.models.embeddings import name_in_model
from trainer.models.hidden_layers import hidden_layers
from trainer.models.pooled import PooledModel, vector_width


class BayesianTasks(nn.Module):
    """A tower for each prediction over shared layers, then layers over the tower and the tasks that it depends on.

    The joint probability of the labels factors along the dependencies: `p(click | x) p(buy | x, click)`. The hidden
    vectors of other tasks stand for their labels. Without dependencies, the model is a shared bottom.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, device, dependencies = inputs.config, inputs.device, inputs.config.dependencies
        self._depends_on = {
            name_in_model(name): [name_in_model(other) for other in dependencies.get(name, [])]
            for name in inputs.predictions
        }
        self._order = [*TopologicalSorter(self._depends_on).static_order()]
        self.shared = hidden_layers(inputs, width := vector_width(inputs), config.over_layers)
        width = [width, *config.over_layers][-1]
        self.towers = nn.ModuleDict({name: hidden_layers(inputs, width, config.tower_layers) for name in self._order})
        widths = dict.fromkeys(self._order, [width, *config.tower_layers][-1])
        self.relations = nn.ModuleDict()
        for name, others in ((name, self._depends_on[name]) for name in self._order):
            if others:
                width = widths[name] + sum(widths[other] for other in others)
                self.relations[name] = hidden_layers(inputs, width, config.relation_layers)
                widths[name] = [width, *config.relation_layers][-1]
        columns = dict(zip(self._depends_on, inputs.columns, strict=True))
        self.heads = nn.ModuleDict(
            {name: nn.Linear(widths[name], columns[name], device=device) for name in self._order}
        )

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        shared = self.shared(vector)
        hidden: dict[str, Tensor] = {}
        for name in self._order:
            hidden[name] = self.towers[name](shared)
            if others := self._depends_on[name]:
                joined = torch.cat([hidden[name], *(hidden[other] for other in others)], dim=1)
                hidden[name] = self.relations[name](joined)
        return torch.cat([self.heads[name](hidden[name]) for name in self._depends_on], dim=1)


def dbmtl(inputs: ModelInputs) -> nn.Module:
    """Builds DBMTL."""
    return PooledModel(inputs, BayesianTasks(inputs))
