"""The model of MLPerf's DLRMv4: HSTU with one token for each event, to rank a candidate after a long history.

The units see the tokens of the user's context, of the history's events, and of the candidate, in this order. The
divisor of attention is a constant, so that a sample's logit does not depend on its neighbours in a batch.

Legend: `B` samples, `L` events, `C` features of context, `S` tokens, `D` columns.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrec.modules.activation import SwishLayerNorm
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from trainer.models.base import ModelInputs
from trainer.models.blocked_attention import silu_attention
from trainer.models.pooled import vector_width
from trainer.models.recompute import Recomputable
from trainer.models.sequence_model import (
    at_most_one,
    at_the_end,
    in_groups,
    looked_up,
    sequence_dimension,
    within,
)

# As published, whatever the length and the columns are.
POSITIONS, TIMES, COLUMNS_OF_BIT = 8192, 2049, 8
MINUTE, HOUR, HOURS, DAYS = 60, 3600, 24, 7
EPS = 1e-6


class Unit(Recomputable):
    """Gated attention whose weights are SiLU of the scores; only the gates have an activation of their own."""

    def __init__(self, dimension: int, inputs: ModelInputs) -> None:
        super().__init__()
        config, device = inputs.config, inputs.device
        self._heads, self._block = config.attention_heads, config.attention_block
        self._divisor = config.attention_divisor
        self.norm, self.attended_norm = (nn.LayerNorm(dimension, eps=EPS, device=device) for _ in range(2))
        self.projections = nn.Linear(dimension, 4 * dimension, device=device)
        self.output = nn.Linear(3 * dimension, dimension, bias=False, device=device)
        self.dropout = inputs.dropout(from_the_end=True)
        _started(self, nn.init.xavier_uniform_)

    def forward(self, tokens: Tensor, present: Tensor, asking: int) -> Tensor:
        """Returns the states of the last tokens, `[B, asking, D]`.

        Args:
            tokens: `[B, S, D]`.
            present: Which tokens are no padding, `[B, S]`.
            asking: How many tokens have a state.
        """
        others = tokens.shape[1] - asking
        gates, *parts = self.projections(self.norm(tokens)).chunk(4, dim=2)
        gates = functional.silu(gates[:, others:])
        values, queries, keys = (one.unflatten(2, (self._heads, -1)).transpose(1, 2) for one in parts)
        attended = silu_attention(
            queries[:, :, others:],
            keys,
            values * present[:, None, :, None],
            divisor=self._divisor,
            block=self._block,
            scale=queries.shape[3] ** -0.5,
        )
        attended = attended.transpose(1, 2).flatten(2)
        seen = torch.cat([gates, attended, gates * self.attended_norm(attended)], dim=2)
        return tokens[:, others:] + self.output(self.dropout(seen))


class Tokens(Recomputable):
    """The tokens of samples: the sum of an item, its attributes and its action, or one feature of the context."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, device, columns = inputs.config, inputs.device, sequence_dimension(inputs)
        length = inputs.sequence_features[config.history] if config.history else 0
        self._context, self._scale = len(config.context), math.sqrt(columns)
        if self._context:  # TorchRec's optimizers save no state of weights without values
            self.of_context = nn.Parameter(torch.empty(self._context, columns, columns, device=device))
            self.context_bias = nn.Parameter(torch.zeros(self._context, columns, device=device))
            nn.init.normal_(self.of_context, std=columns**-0.5)  # Xavier's for each of the matrices
        self.of_item = _token_layers(columns, inputs)
        self.of_attributes = self.of_action = self.times = None
        if config.target_attributes:
            self.of_attributes = _token_layers(len(config.target_attributes) * columns, inputs)
        if config.actions:
            width = config.action_bits * COLUMNS_OF_BIT
            self.of_action = _token_layers(width, inputs)
            self.bits = nn.Parameter(torch.empty(config.action_bits, COLUMNS_OF_BIT, device=device).normal_(std=0.1))
            self.no_action = nn.Parameter(torch.empty(width, device=device).normal_(std=0.1))
            values = torch.tensor([2**bit for bit in range(config.action_bits)], device=device)
            self.register_buffer("values_of_bits", values, persistent=False)
        self.positions = _uniform(max(POSITIONS, self._context + 1 + length), columns, device)
        if config.target_time:
            self.times = _uniform(TIMES, columns, device)
        self.dropout = inputs.dropout(from_the_end=True)

    def forward(
        self,
        items: Tensor,
        lengths: Tensor,
        attributes: Sequence[Tensor],
        actions: Tensor | None,
        context: Sequence[Tensor],
        times: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """Returns the tokens, padded at the beginning, `[B, S, D]`, and which are no padding, `[B, S]`.

        Args:
            items: The items of the history, padded at the end, and the candidate, `[B, L + 1, D]`.
            lengths: Lengths of the histories, `[B]`.
            attributes: Attributes of the items, `[B, L + 1, D]` each.
            actions: The actions of the history as sums of bits, `[B, L]`.
            context: Features of the context, `[B, D]` each.
            times: Seconds of the history's events, `[B, L]`, and of the candidate, `[B]`.
        """
        events = self.of_item(items)
        if self.of_attributes is not None:
            events = events + self.of_attributes(torch.cat([*attributes], dim=2))
        if self.of_action is not None and actions is not None:
            events = events + self.of_action(self._columns_of(actions))
        if context:
            around = torch.einsum("bcd,cde->bce", torch.stack([*context], dim=1), self.of_context)
            events = torch.cat([around + self.context_bias, events], dim=1)
        tokens = events * self._scale + looked_up(self.positions, self._places(lengths, items.shape[1] - 1))
        if self.times is not None and times is not None:
            tokens = tokens + looked_up(self.times, self._buckets(*times))
        before, candidate = tokens[:, :-1], tokens[:, -1:]
        lengths = lengths + self._context
        present = functional.pad(within(lengths, before.shape[1]).flip(1), (0, 1), value=True)
        return self.dropout(torch.cat([at_the_end(before, lengths), candidate], dim=1)), present

    def _columns_of(self, actions: Tensor) -> Tensor:
        """Returns the columns of each bit where it is set, and those of the candidate, `[B, L + 1, bits * 8]`."""
        # Not shifted, which ONNX does not do to integers.
        is_set = torch.div(actions[:, :, None].long(), self.values_of_bits, rounding_mode="floor") % 2
        done = (is_set[:, :, :, None] * self.bits).flatten(2)
        return torch.cat([done, self.no_action.expand(done.shape[0], 1, -1)], dim=1)

    def _places(self, lengths: Tensor, longest: int) -> Tensor:
        """Returns the row of each token's position: of the context its place, then how many events ago it was."""
        ago = (lengths.long()[:, None] - torch.arange(longest, device=lengths.device)).clamp(min=0)
        of_context = torch.arange(self._context, device=lengths.device).expand(lengths.shape[0], -1)
        return torch.cat([of_context, self._context + functional.pad(ago, (0, 1))], dim=1)

    def _buckets(self, times: Tensor, now: Tensor) -> Tensor:
        """Returns the row of the time from each token to the candidate, `[B, S]`; context is of the year 1970."""
        passed = [now[:, None].expand(-1, self._context), now[:, None] - times, torch.zeros_like(now)[:, None]]
        minutes = torch.cat(passed, dim=1).clamp(min=0).float() / MINUTE
        return minutes.sqrt().long().clamp(max=TIMES - 1)


class CandidateState(nn.Module):
    """The state of the candidate's token after the units."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, dimension = inputs.config, sequence_dimension(inputs)
        self._attributes, self._context = len(config.target_attributes), len(config.context)
        self._has_actions, self._has_times = bool(config.actions), bool(config.target_time)
        self.tokens = Tokens(inputs)
        self.units = nn.ModuleList(Unit(dimension, inputs) for _ in range(config.attention_blocks))

    def forward(self, history: Tensor, lengths: Tensor, target: Tensor, *others: Tensor) -> Tensor:
        """Returns the state, `[B, D]`.

        Args:
            history: The items, padded at the end, `[B, L, D]`.
            lengths: Their numbers, `[B]`.
            target: The candidate, `[B, D]`.
            others: Of the history its attributes, actions and times, as far as there are any; of the candidate its
                attributes, its context and its time.
        """
        past, now = _split(others, self._attributes + self._has_actions + self._has_times)
        attributes, past = _split(past, self._attributes)
        of_target, now = _split(now, self._attributes)
        context, now = _split(now, self._context)
        both = [torch.cat([one, other[:, None]], dim=1) for one, other in zip(attributes, of_target, strict=True)]
        tokens, present = self.tokens(
            torch.cat([history, target[:, None]], dim=1),
            lengths,
            both,
            past[0] if self._has_actions else None,
            context,
            (past[-1], now[0]) if self._has_times else None,
        )
        for place, unit in enumerate(self.units, 1):
            # Nobody reads the other states of the last unit.
            tokens = unit(tokens, present, 1 if place == len(self.units) else tokens.shape[1])
        return tokens[:, -1]


class ProductHead(nn.Module):
    """Logits of a candidate: layers over the product of the user's vector, with all features, and the item's."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, device, columns = inputs.config, inputs.device, sequence_dimension(inputs)
        length = inputs.sequence_features[config.history] if config.history else 0
        self._history, self._length, self._attributes = config.history, length, len(config.target_attributes)
        self._has_times = bool(config.target_time)
        self.interest = CandidateState(inputs)
        width = columns + 4 * self._has_times + vector_width(inputs)
        user = nn.Sequential(nn.Linear(width, columns, device=device), nn.LayerNorm(columns, device=device))
        self.user = _started(user, nn.init.xavier_normal_)
        self.item = _started(
            _layers((1 + self._attributes) * columns, columns, columns, device), nn.init.xavier_uniform_
        )
        over = _layers(columns, columns, sum(inputs.columns), device)[:-1]  # without the norm
        self.over = _started(over, nn.init.xavier_uniform_)

    def forward(self, vector: Tensor, target: list[JaggedTensor], history: dict[str, JaggedTensor]) -> Tensor:
        """Returns logits `[B, T]`, from all that goes with the candidate and with the items of the history."""
        item, *others = at_most_one(target)
        if self._history:
            state = in_groups(self.interest, history, [item, *others], self._length)
        else:
            nothing = torch.zeros_like(item)[:, None]  # padding
            lengths = torch.zeros_like(item[:, 0], dtype=torch.int32)
            state = self.interest(nothing, lengths, item, *[nothing] * self._attributes, *others)
        parts = [state, *(_clock(others[-1], state) if self._has_times else []), vector]
        candidate = self.item(torch.cat([item, *others[: self._attributes]], dim=1))
        return self.over(self.user(torch.cat(parts, dim=1)) * candidate)


class DlrmHstu(nn.Module):
    """Tables, and the network over the candidate, its context and the history."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config = inputs.config
        self._target, self._now = [str(config.target), *config.target_attributes, *config.context], config.target_time
        self._history = [config.history, *config.history_attributes] if config.history else []
        self._beside = [name for name in (*config.actions, config.history_times) if name]
        self.tables = inputs.tables if inputs.sparse_features else None
        self.sequences, self.pool = inputs.sequences, inputs.pool_sequences()
        self.network = ProductHead(inputs)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor:
        """Returns logits `[B, T]`, for dense features `[B, D]` and sparse features."""
        parts = [dense] if self.tables is None else [dense, self.tables(sparse).values()]
        found = self.sequences(sparse)  # pyrefly: ignore[not-callable]
        if self.pool is not None:
            parts.append(self.pool(found, sparse))
        target = [*(found[name] for name in self._target), *(sparse[name] for name in (self._now,) if name)]
        history = {name: found[name] for name in self._history} | {name: sparse[name] for name in self._beside}
        return self.network(torch.cat(parts, dim=1), target, history)


def _token_layers(width: int, inputs: ModelInputs) -> nn.Module:
    columns = sequence_dimension(inputs)
    layers = _layers(width, columns // 2, columns, inputs.device)
    return _started(layers, nn.init.xavier_normal_)


def _layers(width: int, hidden: int, columns: int, device: torch.device) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden, device=device),
        SwishLayerNorm(hidden, device=device),
        nn.Linear(hidden, columns, device=device),
        nn.LayerNorm(columns, device=device),
    )


def _started(network: nn.Module, start: Callable[[Tensor], Tensor]) -> nn.Module:
    """Gives the linear layers of a network their first weights."""
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            start(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return network


def _uniform(rows: int, columns: int, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, columns, device=device).uniform_(-(rows**-0.5), rows**-0.5))


def _split(parts: Sequence[Tensor], number: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    return parts[:number], parts[number:]


def _clock(seconds: Tensor, like: Tensor) -> list[Tensor]:
    """Returns the hour of the day and the day of the week as points of a circle, `[B, 1]` four times."""
    hours = torch.div(seconds.long(), HOUR, rounding_mode="floor")
    of_day, of_week = hours % HOURS, torch.div(hours, HOURS, rounding_mode="floor") % DAYS
    dtype = torch.promote_types(like.dtype, torch.float32)
    turns = of_day.to(dtype) / HOURS, of_week.to(dtype) / DAYS
    return [of(math.tau * turn)[:, None] for turn in turns for of in (torch.cos, torch.sin)]


def dlrm_hstu(inputs: ModelInputs) -> nn.Module:
    """Builds the model."""
    return DlrmHstu(inputs)
