"""A model with a gate for each feature, and a focal loss, which gives easy samples less weight."""

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from torchx_recsys import ModelInputs

GAMMA = 2.0


class Gated(nn.Module):
    """Scales the embedding of each feature by a gate that sees all of them, then applies two layers."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self.tables = inputs.tables  # on the meta device: the trainer shards them
        self.features = len(inputs.sparse_features)
        width = self.features * inputs.config.embedding_dim
        hidden = inputs.config.arguments["hidden"]
        self.gates = nn.Linear(width, self.features, device=inputs.device)
        self.over = nn.Sequential(
            nn.Linear(inputs.dense_features + width, hidden, device=inputs.device),
            nn.ReLU(),
            nn.Linear(hidden, inputs.labels, device=inputs.device),
        )

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """Returns logits, `[B, T]`."""
        embeddings = self.tables(sparse).values()  # [B, F * D]
        gates = 2 * torch.sigmoid(self.gates(embeddings))  # [B, F], around 1
        gated = embeddings.unflatten(1, (self.features, -1)) * gates.unsqueeze(2)
        return self.over(torch.cat([dense, gated.flatten(1)], dim=1))


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the focal loss of each sample, `[B]`."""
    loss = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return ((1 - torch.exp(-loss)) ** GAMMA * loss).sum(dim=1)
