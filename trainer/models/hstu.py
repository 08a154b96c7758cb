"""Hierarchical sequential transduction units (Zhai et al., arXiv:2402.17152), to rank an item or to find the next one.

Legend: `B` samples, `L` tokens, `D` columns.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.base import ModelInputs
from trainer.models.blocked_attention import silu_attention
from trainer.models.recompute import Recomputable
from trainer.models.sequence_model import (
    TIME_BUCKETS,
    SequenceModel,
    at_the_beginning,
    at_the_end,
    looked_up,
    sequence_dimension,
    time_buckets,
    within,
)


class TransductionUnit(Recomputable):
    """Gated attention without a softmax: the sum of the weights is the strength of an interest.

    Args:
        dimension: Columns of a token, `D`.
        length: The most tokens, which the weights are divided by.
        inputs: The inputs of the model's builder.
    """

    def __init__(self, dimension: int, length: int, inputs: ModelInputs) -> None:
        super().__init__()
        config, device = inputs.config, inputs.device
        self._heads, self._length, self._block = config.attention_heads, length, config.attention_block
        self.norm, self.attended_norm = (nn.LayerNorm(dimension, device=device) for _ in range(2))
        self.projections = nn.Linear(dimension, 4 * dimension, device=device)
        self.output = nn.Linear(dimension, dimension, device=device)
        self.dropout = inputs.dropout(from_the_end=True)
        self.by_distance = nn.Parameter(torch.zeros(length, device=device))
        self.by_time = nn.Parameter(torch.zeros(TIME_BUCKETS, device=device)) if config.target_time else None

    def forward(self, tokens: Tensor, present: Tensor, times: tuple[Tensor, Tensor] | None, asking: int) -> Tensor:
        """Returns the states of the last tokens, `[B, asking, D]`.

        Args:
            tokens: `[B, L, D]`.
            present: Which tokens are no padding, `[B, L]`.
            times: When each token asks, and when it was, in seconds, `[B, L]` each.
            asking: How many tokens have a state.
        """
        gates, *parts = functional.silu(self.projections(self.norm(tokens))).chunk(4, dim=2)
        values, queries, keys = (one.unflatten(2, (self._heads, -1)).transpose(1, 2) for one in parts)
        others = tokens.shape[1] - asking
        attended = silu_attention(
            queries[:, :, others:],
            keys,
            values * present[:, None, :, None],
            divisor=self._length,
            block=self._block,
            bias=RelativeBias(self.by_distance, self.by_time, times),
        )
        gated = self.attended_norm(attended.transpose(1, 2).flatten(2)) * gates[:, others:]
        return tokens[:, others:] + self.output(self.dropout(gated))


class RelativeBias:
    """The bias of two tokens by how many tokens and how much time apart they are."""

    def __init__(self, by_distance: Tensor, by_time: Tensor | None, times: tuple[Tensor, Tensor] | None) -> None:
        self.weights = [by_distance] if by_time is None else [by_distance, by_time]
        self._times = times

    def __call__(self, queries: slice, keys: slice) -> Tensor:
        """Returns the bias between the tokens in these places, `[B or 1, 1, n, k]`."""
        place = torch.arange(keys.stop, device=self.weights[0].device)
        bias = looked_up(self.weights[0], (place[queries, None] - place).clamp(min=0))[None, None]
        if self._times is None:
            return bias
        asks, was = self._times
        buckets = time_buckets((asks[:, queries, None] - was[:, None, keys]).clamp(min=1))
        return bias + looked_up(self.weights[1], buckets)[:, None]


class LastToken(nn.Module):
    """The state of the last token after the units.

    To rank, the tokens are each item of the history, each followed by its actions, if any, and the target. To find the
    next item, a token is an item plus its actions.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, dimension = inputs.config, sequence_dimension(inputs)
        self._retrieves, self._actions = config.retrieves, len(config.actions)
        self._every_position = config.every_position
        self._weighted = [place for place, name in enumerate(config.actions) if name in inputs.weighted_features]
        self._tokens = 2 if config.actions and not self._retrieves else 1  # of each item
        length = inputs.sequence_features[config.history] if config.history else 0
        most = self._tokens * length + (not self._retrieves)
        self.dropout = inputs.dropout(from_the_end=True)
        self.units = nn.ModuleList(TransductionUnit(dimension, most, inputs) for _ in range(config.attention_blocks))
        self.norm = nn.LayerNorm(dimension, device=inputs.device)

    def forward(self, history: Tensor, lengths: Tensor, target: Tensor, *others: Tensor) -> Tensor:
        """Returns the state, `[B, D]`; zeros where there is no token. To train at every position, all, `[B, L, D]`.

        Args:
            history: The items, padded at the end.
            lengths: Their numbers, `[B]`.
            target: The target, `[B, D]`.
            others: The actions, like the items; the weights of those that have weights; the times of items, and of the
                target, `[B]`, if there are any.
        """
        numbers = self._actions + len(self._weighted)
        items, *actions = (at_the_end(one, lengths) for one in (history, *others[: self._actions]))
        for place, weights in zip(self._weighted, others[self._actions : numbers], strict=True):
            actions[place] = actions[place] * at_the_end(weights, lengths)[:, :, None]
        present = within(lengths, history.shape[1]).flip(1)
        if self._retrieves:
            tokens = torch.stack([items, *actions]).sum(0)
        else:
            each = torch.stack([items, torch.stack(actions).sum(0)], dim=2).flatten(1, 2) if actions else items
            tokens = torch.cat([each, target[:, None]], dim=1)
            present = functional.pad(self._for_each_token(present), (0, 1), value=True)
        tokens, times = self.dropout(tokens), others[numbers:]
        every = self.training and self._every_position
        of_tokens = self._times(at_the_end(times[0], lengths), times[1][:, None]) if times else None
        for place, unit in enumerate(self.units, 1):
            # Nobody reads the other states of the last unit.
            is_last = place == len(self.units) and not every
            tokens = unit(tokens, present, of_tokens, 1 if is_last else tokens.shape[1])
        if every:
            return self.norm(at_the_beginning(tokens, lengths))
        return self.norm(tokens[:, -1]) * present[:, -1:]

    def _times(self, times: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
        """Returns when each token asks, and when it was, `[B, L]` each.

        To find the next item, a token asks at the time of the item that comes next.
        """
        until = torch.cat([times[:, 1:], now], dim=1)
        if self._retrieves:
            return until, times
        times = torch.cat([self._for_each_token(times), now], dim=1)
        return times, times

    def _for_each_token(self, of_items: Tensor) -> Tensor:
        return of_items[:, :, None].expand(-1, -1, self._tokens).flatten(1)


def hstu(inputs: ModelInputs) -> nn.Module:
    """Builds the model."""
    return SequenceModel(inputs, LastToken(inputs), sequence_dimension(inputs))
