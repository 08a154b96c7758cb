"""Self-attentive sequential recommendation (Kang, McAuley, arXiv:1808.09781)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.base import ModelInputs
from trainer.models.hidden_layers import activation
from trainer.models.recompute import Recomputable
from trainer.models.sequence_model import SequenceModel, sequence_dimension


class AttentionBlock(Recomputable):
    """Causal self-attention, then two layers for each item by itself; both with a residual and a norm before."""

    def __init__(self, dimension: int, inputs: ModelInputs) -> None:
        super().__init__()
        self._heads, device = inputs.config.attention_heads, inputs.device
        self.norm, self.inner_norm = (nn.LayerNorm(dimension, device=device) for _ in range(2))
        self.projections = nn.Linear(dimension, 3 * dimension, device=device)
        self.output = nn.Linear(dimension, dimension, device=device)
        self.inner = nn.Linear(dimension, dimension, device=device)
        self.outer = nn.Linear(dimension, dimension, device=device)
        self.activation = activation(inputs)
        self.dropout, self.inner_dropout = inputs.dropout(), inputs.dropout()
        # A bias of the keys adds the same to all products of a query, which softmax takes away: its gradient is what
        # rounding leaves of 0, which Adam makes as large as any, and other on another number of ranks.
        part = torch.ones(dimension, device=device)
        self.register_buffer("has_bias", torch.cat([part, 0 * part, part]), persistent=False)

    def forward(self, items: Tensor) -> Tensor:
        """Returns a state for each item, `[B, L, D]`."""
        biases = self.projections.bias * self.has_bias
        projected = functional.linear(self.norm(items), self.projections.weight, biases)
        queries, keys, values = in_heads(projected, self._heads)
        # An item sees only the items before it, and padding comes last: no other mask is needed.
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        items = items + self.dropout(self.output(heads_together(seen)))
        return items + self.inner_dropout(self.outer(self.activation(self.inner(self.inner_norm(items)))))


def in_heads(projected: Tensor, heads: int) -> Tensor:
    """Returns queries, keys and values, `[3, B, heads, L, D / heads]`, from their columns, `[B, L, 3 D]`."""
    return projected.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)


def heads_together(seen: Tensor) -> Tensor:
    """Returns the columns of all heads, `[B, L, D]`, from `[B, heads, L, D / heads]`."""
    return seen.transpose(1, 2).flatten(2)


class LastState(nn.Module):
    """The state of a history's newest item after the blocks and, to rank the target, its products with that."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, dimension = inputs.config, sequence_dimension(inputs)
        self._retrieves, self._every_position = config.retrieves, config.every_position
        length = inputs.sequence_features[config.history] if config.history else 1
        # By age, so that the newest item has the same position in every history.
        self.positions = nn.Embedding(length, dimension, device=inputs.device)
        self.dropout = inputs.dropout()
        self.blocks = nn.Sequential(*(AttentionBlock(dimension, inputs) for _ in range(config.attention_blocks)))
        self.norm = nn.LayerNorm(dimension, device=inputs.device)

    def forward(self, history: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Returns `[B, D]` or `[B, 2 D]` from `[B, L, D]`, `[B]` and `[B, D]`; zeros where a history is empty.

        To train at every position, the states of all items, `[B, L, D]`.
        """
        last = (lengths.long() - 1).clamp(min=0)
        ages = (last[:, None] - torch.arange(history.shape[1], device=lengths.device)).clamp(min=0)
        states = self.blocks(self.dropout(history + self.positions(ages)))
        if self.training and self._every_position:
            return self.norm(states)
        # Not take_along_dim, which torch.export takes for one number of samples only.
        newest = states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)
        state = self.norm(newest) * (lengths > 0)[:, None]
        return state if self._retrieves else torch.cat([state, state * target], dim=1)


def sasrec(inputs: ModelInputs) -> nn.Module:
    """Builds SASRec."""
    return SequenceModel(inputs, LastState(inputs), 2 * sequence_dimension(inputs))
