"""Experts with gates: MMoE (Ma et al., KDD 2018) and PLE (Tang et al., RecSys 2020)."""

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs
from trainer.models.hidden_layers import hidden_layers, tower
from trainer.models.pooled import PooledModel, by_prediction, vector_width


class Experts(nn.Module):
    """Networks of one shape over the same vector: `[B, W]` to `[B, E, H]`."""

    def __init__(self, count: int, width: int, inputs: ModelInputs) -> None:
        super().__init__()
        layers = inputs.config.experts.layers
        self.networks = nn.ModuleList(hidden_layers(inputs, width, layers) for _ in range(count))

    def forward(self, vector: Tensor) -> Tensor:
        """Returns the outputs of all experts."""
        return torch.stack([network(vector) for network in self.networks], dim=1)


class Gate(nn.Module):
    """Mixes experts by weights that add up to 1 and depend on a vector: `softmax(G x)` of the vector `x`."""

    def __init__(self, width: int, experts: int, inputs: ModelInputs) -> None:
        super().__init__()
        self.scores = nn.Linear(width, experts, bias=False, device=inputs.device)

    def forward(self, vector: Tensor, experts: Tensor) -> Tensor:
        """Returns the mixture `[B, H]` of experts `[B, E, H]` for vectors `[B, W]`."""
        return torch.einsum("be,beh->bh", self.scores(vector).softmax(dim=1), experts)


class Towers(nn.Module):
    """A network for each prediction over a vector of its own."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        width, layers = inputs.config.experts.layers[-1], inputs.config.tower_layers
        columns = iter(inputs.columns)
        self.towers = by_prediction(inputs, lambda: tower(inputs, width, layers, next(columns)))

    def forward(self, vectors: list[Tensor]) -> Tensor:
        """Returns logits `[B, T]` for vectors `[B, H]`, one for each prediction."""
        return torch.cat([one(vector) for one, vector in zip(self.towers.values(), vectors, strict=True)], dim=1)


class MultiGateMixture(nn.Module):
    """All predictions share the experts; each has a gate and a tower of its own."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        width, experts = vector_width(inputs), inputs.config.experts.shared
        self.experts = Experts(experts, width, inputs)
        self.gates = by_prediction(inputs, lambda: Gate(width, experts, inputs))
        self.towers = Towers(inputs)

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        experts = self.experts(vector)
        return self.towers([gate(vector, experts) for gate in self.gates.values()])


class Extraction(nn.Module):
    """One level of PLE: maps a vector for each prediction and a shared vector to new ones, by experts of each kind.

    A prediction's gate mixes its own experts and the shared ones. The gate of the shared vector mixes all experts;
    the last level has no such gate, as no tower uses the shared vector.
    """

    def __init__(self, width: int, last: bool, inputs: ModelInputs) -> None:
        super().__init__()
        shared, own = inputs.config.experts.shared, inputs.config.experts.per_task
        self.shared = Experts(shared, width, inputs)
        self.own = by_prediction(inputs, lambda: Experts(own, width, inputs))
        self.gates = by_prediction(inputs, lambda: Gate(width, own + shared, inputs))
        self.shared_gate = None if last else Gate(width, own * inputs.labels + shared, inputs)

    def forward(self, vectors: list[Tensor], shared_vector: Tensor) -> tuple[list[Tensor], Tensor]:
        """Returns the vectors of the predictions and the shared vector, `[B, H]` each, from vectors `[B, W]`."""
        shared = self.shared(shared_vector)
        own = [experts(vector) for experts, vector in zip(self.own.values(), vectors, strict=True)]
        mixed = [
            gate(vector, torch.cat([experts, shared], dim=1))
            for gate, vector, experts in zip(self.gates.values(), vectors, own, strict=True)
        ]
        if self.shared_gate is None:
            return mixed, shared_vector
        return mixed, self.shared_gate(shared_vector, torch.cat([*own, shared], dim=1))


class ProgressiveExtraction(nn.Module):
    """Levels of extraction, then a tower for each prediction."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        levels, layers = inputs.config.experts.levels, inputs.config.experts.layers
        widths = [vector_width(inputs), *[layers[-1]] * (levels - 1)]
        self.levels = nn.ModuleList(Extraction(width, at == levels, inputs) for at, width in enumerate(widths, 1))
        self.towers = Towers(inputs)

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        vectors, shared = [vector] * len(self.towers.towers), vector
        for level in self.levels:
            vectors, shared = level(vectors, shared)
        return self.towers(vectors)


def mmoe(inputs: ModelInputs) -> nn.Module:
    """Builds MMoE, multi-gate mixture of experts."""
    return PooledModel(inputs, MultiGateMixture(inputs))


def ple(inputs: ModelInputs) -> nn.Module:
    """Builds PLE, progressive layered extraction; of one level it is the paper's CGC."""
    return PooledModel(inputs, ProgressiveExtraction(inputs))
