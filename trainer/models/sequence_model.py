"""The base of models of sequences: they see a sample's vector, its target item and the history of earlier items."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from trainer.batches.rows import NO_ID
from trainer.core.errors import InputError
from trainer.models.base import ModelInputs, Predictions
from trainer.models.hidden_layers import tower
from trainer.models.pooled import columns_that_share, vector_width
from trainer.models.step_samples import samples_of
from trainer.models.vectors import vector_pairs

# Samples whose lengths differ by no more are padded to the longest of them. So are few and short ones, to which a call
# would cost more than the padding.
ALIKE, SHORT = 0.75, 8
# Pairs of items in one group: on a CPU few enough that the scores of attention stay in the cache; on a GPU more, as the
# host takes microseconds to start a kernel.
PAIRS, PAIRS_ON_GPU = 1 << 18, 1 << 26
TIME_BUCKETS = 32  # number of buckets of elapsed seconds, by powers of two up to 68 years
FLOAT_BITS, FLOAT_BIAS = 23, 127  # number of bits of a float32's fraction, and the bias of its exponent
EARLIER_PAIRS, ROWS_OF_ITEMS = "earlier pairs", "rows of items"  # beside the predictions, to train at every position


@dataclass
class CountedGroups:
    """The groups of samples in a step without values, whose memory and work are counted.

    Attributes:
        most: Into how many all samples are divided at most.
        pairs: Pairs of items in one group.
        all: How many a step has.
    """

    most: int
    pairs: int = PAIRS
    all: int = 1


_counted: ContextVar[CountedGroups] = ContextVar("counted groups")


@contextmanager
def count_groups(groups: CountedGroups) -> Iterator[None]:
    """Inside the block, steps without values compute at most `groups.most` groups, and set `groups.all`."""
    token = _counted.set(groups)
    try:
        yield
    finally:
        _counted.reset(token)


class SequenceModel(nn.Module):
    """Tables and a network over the vector of each sample, its target and its history.

    The vector is the same as in `PooledModel`: dense features, then a pooled embedding per feature, those last whose
    table serves sequences, too.

    Args:
        inputs: The inputs of the model's builder.
        interest: Returns the interest of a history in a target, `[B, I]`, from embeddings `[B, L, D]`, lengths `[B]`
            and the target's embedding `[B, D]`; then, where they are set, from the embeddings of model.actions,
            `[B, L, D]` each, their weights, `[B, L]` each, model.history_times, `[B, L]`, and model.target_time, `[B]`.
            Not used without model.history.
        width: Number of columns of the interest, `I`.
        network: The network in place of that of an interest, to be called like it.
    """

    def __init__(
        self,
        inputs: ModelInputs,
        interest: nn.Module | None = None,
        width: int = 0,
        network: nn.Module | None = None,
    ) -> None:
        super().__init__()
        config = inputs.config
        self._target, self._history = str(config.target), config.history
        self._actions, self._times, self._now = config.actions, config.history_times, config.target_time
        self._weighted = [name for name in config.actions if name in inputs.weighted_features]
        self.tables = inputs.tables if inputs.sparse_features else None
        self.sequences, self.pool = inputs.sequences, inputs.pool_sequences()
        self._every_position = config.every_position
        length = inputs.sequence_features[self._history] if self._history else 0
        if network:
            self.network = network
        elif config.retrieves:
            assert interest
            self.network = _NextItem(inputs, interest, length)
        else:
            self.network = _Network(inputs, interest if self._history else None, width if self._history else 0, length)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor | Predictions:
        """Returns logits `[B, T]`, or vectors of query and item, for dense features `[B, D]` and sparse features."""
        parts = [dense]
        if self.tables is not None:
            parts.append(self.tables(sparse).values())
        found = self.sequences(sparse)  # pyrefly: ignore[not-callable]
        if self.pool is not None:
            parts.append(self.pool(found, sparse))
        history = {name: found[name] for name in (self._history or self._target, *self._actions)}
        history |= {f"{name}.weights": weights_of(sparse[name]) for name in self._weighted}
        history |= {name: sparse[name] for name in (self._times,) if name}
        target = [found[self._target], *(sparse[name] for name in (self._now,) if name)]
        if self._every_position and self.training:
            rows = sparse[self._target], sparse[str(self._history)]
            return self.network(torch.cat(parts, dim=1), target, history, rows)
        return self.network(torch.cat(parts, dim=1), target, history)


@torch.fx.wrap
def weights_of(ids: JaggedTensor) -> JaggedTensor:
    """Returns the weights of ids as a sequence of their own."""
    return JaggedTensor(ids.weights(), lengths=ids.lengths()) if isinstance(ids, JaggedTensor) else ids.of_weights()


class _Network(nn.Module):
    """Hidden layers over a sample's vector, its target and the interest of its history in the target."""

    def __init__(self, inputs: ModelInputs, interest: nn.Module | None, width: int, length: int) -> None:
        super().__init__()
        self.interest, self._length, self._adds = interest, length, inputs.config.inner_product
        over = vector_width(inputs) + sequence_dimension(inputs) + (0 if self._adds else width)
        self.register_buffer("shares", columns_that_share(inputs), persistent=False)
        self.over = tower(inputs, over, inputs.config.over_layers, sum(inputs.columns))

    def forward(self, vector: Tensor, target: list[JaggedTensor], history: dict[str, JaggedTensor]) -> Tensor:
        """Returns logits `[B, T]`, from the target and its time, and from the history and what goes with its items."""
        item, *time = at_most_one(target)
        parts = [vector, item]
        if self.interest is None:
            return self.over(torch.cat(parts, dim=1))
        found = in_groups(self.interest, history, [item, *time], self._length)
        if self._adds:
            return self.over(torch.cat(parts, dim=1)) + (found * item).sum(dim=1, keepdim=True) * self.shares
        return self.over(torch.cat([*parts, found], dim=1))


class _NextItem(nn.Module):
    """A vector of the history, to predict the next item, and the vector of the item that came next.

    To train at every position, also such pairs for each earlier item of the history that another one follows.
    """

    def __init__(self, inputs: ModelInputs, interest: nn.Module, length: int) -> None:
        super().__init__()
        self.interest, self._length = interest, length
        self._predictions, self._config = inputs.predictions, inputs.config

    def forward(
        self,
        vector: Tensor,
        target: list[JaggedTensor],
        history: dict[str, JaggedTensor],
        rows: tuple[JaggedTensor, JaggedTensor] | None = None,
    ) -> Predictions:
        """Returns the vectors of query and item, `[B, 2, D]`, as every prediction; in training also earlier ones.

        Args:
            vector: Not used.
            target: The item that came next, and its time if it has one.
            history: The history, and what goes with its items.
            rows: The rows of the target and of the history in their table, to train at every position.
        """
        item, *time = at_most_one(target)
        if self._config.every_position and self.training:
            assert rows is not None
            return self._at_every_position([item, *time], history, *rows)
        query = in_groups(self.interest, history, [item, *time], self._length)
        return dict.fromkeys(self._predictions, vector_pairs(query, item, self._config))

    def _at_every_position(
        self,
        target: list[Tensor],
        history: dict[str, JaggedTensor],
        row_of_target: JaggedTensor,
        rows: JaggedTensor,
    ) -> Predictions:
        items = next(iter(history.values()))
        states = _with_padding(in_groups(self.interest, history, target, self._length, every_position=True))
        lengths, starts, end = items.lengths().long(), items.offsets()[:-1], len(items.values())
        last = (starts + lengths - 1).where(lengths > 0, end)
        before = (lengths - 1).clamp(min=0)
        longest = max(1, self._length - 1 if isinstance(before, FakeTensor) else int(before.max()))
        here = starts[:, None] + torch.arange(longest, device=starts.device)
        there = within(before, longest)
        here, following = (places.where(there, end) for places in (here, here + 1))
        queries = states.index_select(0, here.flatten()).unflatten(0, here.shape)
        followers = _with_padding(items.values()).index_select(0, following.flatten()).unflatten(0, here.shape)
        known = row_of_target.offsets()[:-1].where(row_of_target.lengths() > 0, len(row_of_target.values()))
        of_target = functional.pad(row_of_target.values(), (0, 1), value=NO_ID)[known]
        of_followers = functional.pad(rows.values(), (0, 1), value=NO_ID)[following]
        return dict.fromkeys(self._predictions, vector_pairs(states.index_select(0, last), target[0], self._config)) | {
            EARLIER_PAIRS: vector_pairs(queries, followers, self._config),
            ROWS_OF_ITEMS: torch.cat([of_target[:, None], of_followers], dim=1).long(),
        }


def at_most_one(target: list[JaggedTensor]) -> list[Tensor]:
    """Returns sequences of at most one as `[B, ...]`, zeros where there is none."""
    return [one.to_padded_dense(1).squeeze(1) for one in target]


def in_groups(
    interest: nn.Module,
    history: Mapping[str, JaggedTensor],
    target: Sequence[Tensor],
    length: int,
    every_position: bool = False,
) -> Tensor:
    """Returns the interest of all samples, computed for groups of samples with histories of like length.

    With a mean length of a quarter of the longest, that takes a third of the time of one batch padded to the longest
    (SASRec forward and backward on a CPU, longest 50, 200 and 1,000). Nested tensors and FBGEMM's jagged operations
    have no product of two jagged dimensions, and pad inside; a call for each sample is slower below a length of 1,000;
    flex_attention does not train on a CPU, and has no attention without a softmax.

    Args:
        interest: Computes it, as for `SequenceModel`.
        history: The histories, then what goes with their items, by feature.
        target: The targets, `[B, D]`, then what goes with them.
        length: The longest that a history may be.
        every_position: Whether `interest` returns a state for each item, `[B, L, D]`; they come one after the other, as
            the items do.

    Raises:
        InputError: An item of a history lacks what goes with it.
    """
    first = next(iter(history.values()))
    if not isinstance(first, JaggedTensor):  # exported
        padded = [one.to_padded_dense(length) for one in history.values()]
        return interest(padded[0], first.lengths(), target[0], *padded[1:], *target[1:])
    if isinstance(first.lengths(), FakeTensor):
        return _without_values(interest, history, target, length, every_position)
    return _grouped(interest, history, target, every_position)


# Compiled are the calls of `interest`, each of which is the same program for all sizes.
@torch.compiler.disable(recursive=False)
def _grouped(
    interest: nn.Module, history: Mapping[str, JaggedTensor], target: Sequence[Tensor], every_position: bool
) -> Tensor:
    _check_lengths(history)
    first = next(iter(history.values()))
    groups = [*_groups(first.lengths().cpu().numpy(), PAIRS_ON_GPU if first.lengths().is_cuda else PAIRS)]
    found = _of_groups(interest, history, target, groups)
    if every_position:
        places = torch.cat(_places(first, groups))
        where = places.new_empty(len(first.values()) + 1)
        where[places] = torch.arange(len(places), device=places.device)
        return found.index_select(0, where[:-1])
    order = np.concatenate([samples for samples, _ in groups])
    return found[torch.from_numpy(order.argsort()).to(found.device)]


def _without_values(
    interest: nn.Module,
    history: Mapping[str, JaggedTensor],
    target: Sequence[Tensor],
    length: int,
    every_position: bool,
) -> Tensor:
    """Returns the interest of a batch without values, whose memory and work are counted.

    Its groups are alike, with as many padded items and pairs of them as those of a step together, but no more than
    `count_groups` says.
    """
    first, counted = next(iter(history.values())), _counted.get(CountedGroups(1))
    samples = len(first.lengths())
    lengths = likely_lengths(samples, len(first.values()), length)
    groups = [(len(one), longest) for one, longest in _groups(lengths, counted.pairs)]
    items, pairs = (sum(number * longest**power for number, longest in groups) for power in (1, 2))
    counted.all = max(counted.all, len(groups))
    longest, number = round(pairs / items), min(counted.most, len(groups))
    alike = np.array_split(np.arange(max(number, round(items / longest))) % samples, number)
    found = _of_groups(interest, history, target, [(one, longest) for one in alike])
    return found[torch.arange(len(first.values()) if every_position else samples) % len(found)]


@torch.compiler.disable(recursive=False)
def _of_groups(
    interest: nn.Module,
    history: Mapping[str, JaggedTensor],
    target: Sequence[Tensor],
    groups: Sequence[tuple[np.ndarray, int]],
) -> Tensor:
    """Returns the interest of groups of samples, one group after the other."""
    found, samples = [], samples_of(interest)
    for (places, _), inputs in zip(groups, _padded(history, target, groups), strict=True):
        with samples.only(places):
            found.append(interest(*inputs).flatten(0, -2))
    return torch.cat(found)


@torch.compiler.disable
def _padded(
    history: Mapping[str, JaggedTensor], target: Sequence[Tensor], groups: Sequence[tuple[np.ndarray, int]]
) -> list[list[Tensor]]:
    """Returns the inputs of `interest` for each group, padded to its longest history."""
    first, sizes = next(iter(history.values())), [len(samples) for samples, _ in groups]
    samples = torch.from_numpy(np.concatenate([samples for samples, _ in groups])).to(first.lengths().device)
    # Taken for all groups at once, as the gradient of each taking is of the size of what is taken from; and not split
    # into views, whose sizes torch.compile would tie to that of all of them.
    lengths, *targets = (torch.unsafe_split_with_sizes(one[samples], sizes) for one in (first.lengths(), *target))
    places = _places(first, groups)
    taken = [_with_padding(one.values()).index_select(0, torch.cat(places)) for one in history.values()]
    padded = [torch.unsafe_split_with_sizes(one, [len(here) for here in places]) for one in taken]
    inputs = []
    for number, (size, (_, longest)) in enumerate(zip(sizes, groups, strict=True)):
        past, *others = (one[number].unflatten(0, (size, longest)) for one in padded)
        item, *of_target = (one[number] for one in targets)
        inputs.append([past, lengths[number], item, *others, *of_target])
    return inputs


def _places(history: JaggedTensor, groups: Sequence[tuple[np.ndarray, int]]) -> list[Tensor]:
    """Returns where the items of each group's padded histories are among all, and the number of all for padding."""
    samples = torch.from_numpy(np.concatenate([samples for samples, _ in groups])).to(history.lengths().device)
    starts, lengths = (
        torch.unsafe_split_with_sizes(one[samples], [len(samples) for samples, _ in groups])
        for one in (history.offsets(), history.lengths())
    )
    places = []
    for start, length, (_, longest) in zip(starts, lengths, groups, strict=True):
        here = start[:, None] + torch.arange(longest, device=start.device)
        places.append(here.where(within(length, longest), len(history.values())).flatten())
    return places


def _with_padding(values: Tensor) -> Tensor:
    """Returns the values and a zero, which histories are padded with."""
    return torch.cat([values, values.new_zeros(1, *values.shape[1:])])


def _check_lengths(history: Mapping[str, JaggedTensor]) -> None:
    (name, first), *others = history.items()
    for other, sequence in others:
        if (unlike := sequence.lengths() != first.lengths()).any():
            sample = int(unlike.int().argmax())
            raise InputError(
                f"data.sparse.{other} has {int(sequence.lengths()[sample])} values in a sample in which "
                f"data.sparse.{name} has {int(first.lengths()[sample])} items; make the lists of each row alike, "
                "without nulls"
            )


def _groups(lengths: np.ndarray, pairs: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yields samples whose histories are of like length, the longest first, and the greatest of their lengths."""
    order = np.argsort(-lengths, kind="stable")
    lengths, start = lengths[order], 0
    while start < len(order):
        longest = max(int(lengths[start]), 1)
        alike = np.searchsorted(-lengths, -ALIKE * longest) if longest > SHORT else len(order)
        stop = max(start + 1, min(int(alike), start + pairs // longest**2))
        yield order[start:stop], longest
        start = stop


def likely_lengths(samples: int, items: int, longest: int) -> np.ndarray:
    """Returns lengths of histories, `[B]`, of which only the total and the longest are known: by Zipf's law."""
    # Its exponent follows from the mean: all lengths up to the longest are as likely if the mean is half of it.
    places = (np.arange(samples) + 0.5) / samples
    return np.rint(longest * places ** max(longest * samples / max(items, 1) - 1, 0)).astype(np.int64)


def sequence_dimension(inputs: ModelInputs) -> int:
    """Returns the columns of the tables of sequences, `D`."""
    assert inputs.sequences is not None, "check_sequences refuses it"
    return inputs.sequences.embedding_dim()


def within(lengths: Tensor, length: int) -> Tensor:
    """Returns whether each place of a padded sequence is inside it, `[B, L]`, from lengths `[B]`."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]


def at_the_end(padded: Tensor, lengths: Tensor) -> Tensor:
    """Returns what is padded at the end, `[B, L, ...]`, padded at the beginning, with any values."""
    length = padded.shape[1]
    places = (torch.arange(length, device=padded.device) - (length - lengths.long())[:, None]).clamp(min=0)
    return padded.gather(1, places.view(*places.shape, *(1 for _ in padded.shape[2:])).expand_as(padded))


def at_the_beginning(padded: Tensor, lengths: Tensor) -> Tensor:
    """Returns what is padded at the beginning, `[B, L, ...]`, padded at the end, with any values."""
    length = padded.shape[1]
    places = (torch.arange(length, device=padded.device) + (length - lengths.long())[:, None]).clamp(max=length - 1)
    return padded.gather(1, places.view(*places.shape, *(1 for _ in padded.shape[2:])).expand_as(padded))


def looked_up(weights: Tensor, places: Tensor) -> Tensor:
    """Returns the weights in these places, `[..., *]` from `[R, *]` and `[...]`."""
    # On a CPU the gradient of weights[places] takes twice as long, and that of an embedding sixty times.
    return weights.index_select(0, places.flatten()).view(*places.shape, *weights.shape[1:])


def time_buckets(seconds: Tensor) -> Tensor:
    """Returns the buckets of elapsed seconds from 1 up: by powers of two, the first for 1 second."""
    # The exponent of a float, 13 times as fast as a logarithm, and the same everywhere.
    return (seconds.float().view(torch.int32) >> FLOAT_BITS) - FLOAT_BIAS
