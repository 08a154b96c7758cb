"""The Behavior Sequence Transformer (Chen et al., arXiv:1905.06874).

Legend: `B` samples, `L` items, `D` columns.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.base import ModelInputs
from trainer.models.hidden_layers import activation
from trainer.models.recompute import Recomputable
from trainer.models.sasrec import heads_together, in_heads
from trainer.models.sequence_model import (
    TIME_BUCKETS,
    SequenceModel,
    at_the_end,
    looked_up,
    sequence_dimension,
    time_buckets,
    within,
)

INNER = 4  # columns of the inner layer for each column of a token, as in arXiv:1706.03762


class TransformerLayer(Recomputable):
    """Self-attention of all tokens, then two layers for each token by itself; both with a residual and a norm after."""

    def __init__(self, dimension: int, inputs: ModelInputs) -> None:
        super().__init__()
        self._heads, device = inputs.config.attention_heads, inputs.device
        self.projections = nn.Linear(dimension, 3 * dimension, bias=False, device=device)
        self.output = nn.Linear(dimension, dimension, device=device)
        self.norm, self.outer_norm = (nn.LayerNorm(dimension, device=device) for _ in range(2))
        self.inner = nn.Linear(dimension, INNER * dimension, device=device)
        self.outer = nn.Linear(INNER * dimension, dimension, device=device)
        self.activation = activation(inputs)
        self.dropout, self.outer_dropout = inputs.dropout(), inputs.dropout()

    def forward(self, tokens: Tensor, present: Tensor) -> Tensor:
        """Returns a state for each token, `[B, L, D]`, from the tokens and which of them are no padding, `[B, L]`."""
        queries, keys, values = in_heads(self.projections(tokens), self._heads)
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=present[:, None, None])
        states = self.norm(tokens + self.dropout(self.output(heads_together(seen))))
        return self.outer_norm(states + self.outer_dropout(self.outer(self.activation(self.inner(states)))))


class AllStates(nn.Module):
    """The states of the target and of all items after the layers, side by side.

    A token is an embedding plus a learned vector of its position: by its time before the target's, or by its place. In
    the paper that vector is concatenated, and positions are times.

    Attributes:
        columns: Columns of all states, with those of a history of the greatest length.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, dimension = inputs.config, sequence_dimension(inputs)
        most = 1 + (inputs.sequence_features[config.history] if config.history else 0)
        self.columns = most * dimension
        positions = TIME_BUCKETS if config.target_time else most
        self.positions = nn.Parameter(torch.randn(positions, dimension, device=inputs.device) / dimension**0.5)
        self.dropout = inputs.dropout()
        self.layers = nn.ModuleList(TransformerLayer(dimension, inputs) for _ in range(config.attention_blocks))

    def forward(self, history: Tensor, lengths: Tensor, target: Tensor, *times: Tensor) -> Tensor:
        """Returns the states, `[B, columns]`: of the target, then of the items from new to old; zeros after these.

        Args:
            history: The items, `[B, L, D]`, padded at the end.
            lengths: Their numbers, `[B]`.
            target: The target, `[B, D]`.
            times: The times of the items, `[B, L]`, and of the target, `[B]`, if there are any.
        """
        tokens = torch.cat([target[:, None], _from_new_to_old(history, lengths)], dim=1)
        present = within(lengths + 1, tokens.shape[1])
        if times:
            ages = (times[1][:, None] - _from_new_to_old(times[0], lengths)).clamp(min=0)
            # One second more, so that the first bucket is that of 0 seconds, and of the target.
            places = time_buckets(functional.pad(ages, (1, 0)) + 1)
        else:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.dropout(tokens + looked_up(self.positions, places))
        for layer in self.layers:
            states = layer(states, present)
        found = (states * present[:, :, None]).flatten(1)
        return functional.pad(found, (0, self.columns - found.shape[1]))


def _from_new_to_old(padded: Tensor, lengths: Tensor) -> Tensor:
    """Returns a padded sequence in the reverse order, so that a place is an age; its padding has any values."""
    return at_the_end(padded, lengths).flip(1)


def bst(inputs: ModelInputs) -> nn.Module:
    """Builds the model."""
    interest = AllStates(inputs)
    return SequenceModel(inputs, interest, interest.columns)
