"""Models over the vector of each sample, the item that it is about, and the history of earlier items."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from trainer.models.base import ModelInputs, Predictions
from trainer.models.pooled import columns_that_share, tower, vector_width

# Samples whose lengths differ by no more are padded to the longest of them. So are few and short ones, to which a call
# would cost more than the padding.
ALIKE, SHORT = 0.75, 8
# Pairs of items in one group, so that the scores of attention stay in the cache.
PAIRS = 1 << 18


class SequenceModel(nn.Module):
    """Tables and a network over the vector of each sample, its target and its history.

    The vector is the same as in `PooledModel`: dense features, then a pooled embedding per feature.

    Args:
        inputs: The inputs of the model's builder.
        interest: Returns what a history says about a target, `[B, I]`, from embeddings `[B, L, D]`, lengths `[B]` and
            the target's embedding `[B, D]`. Not used without model.history.
        width: Its columns, `I`.
    """

    def __init__(self, inputs: ModelInputs, interest: nn.Module, width: int) -> None:
        super().__init__()
        config = inputs.config
        self._target, self._history = str(config.target), config.history
        self.tables = inputs.tables if inputs.sparse_features else None
        self.sequences = inputs.sequences
        length = inputs.sequence_features[self._history] if self._history else 0
        self.network = _Network(inputs, interest if self._history else None, width if self._history else 0, length)

    def forward(self, dense: Tensor, sparse: KeyedJaggedTensor) -> Tensor | Predictions:
        """Returns logits `[B, T]` for dense features `[B, D]` and sparse features."""
        parts = [dense]
        if self.tables is not None:
            parts.append(self.tables(sparse).values())
        found = self.sequences(sparse)  # pyrefly: ignore[not-callable]
        return self.network(torch.cat(parts, dim=1), found[self._target], found[self._history or self._target])


class _Network(nn.Module):
    """Hidden layers over a sample's vector, its target and what its history says about that."""

    def __init__(self, inputs: ModelInputs, interest: nn.Module | None, width: int, length: int) -> None:
        super().__init__()
        self.interest, self._length, self._adds = interest, length, inputs.config.inner_product
        over = vector_width(inputs) + sequence_dimension(inputs) + (0 if self._adds else width)
        self.register_buffer("shares", columns_that_share(inputs), persistent=False)
        self.over = tower(over, inputs.config.over_layers, sum(inputs.columns), inputs.device)

    def forward(self, vector: Tensor, target: JaggedTensor, history: JaggedTensor) -> Tensor:
        """Returns logits `[B, T]`."""
        item = target.to_padded_dense(1).squeeze(1)  # zeros where it is null
        parts = [vector, item]
        if self.interest is None:
            return self.over(torch.cat(parts, dim=1))
        found = in_groups(self.interest, history, item, self._length)
        if self._adds:
            return self.over(torch.cat(parts, dim=1)) + (found * item).sum(dim=1, keepdim=True) * self.shares
        return self.over(torch.cat([*parts, found], dim=1))


def in_groups(interest: nn.Module, history: JaggedTensor, target: Tensor, length: int) -> Tensor:
    """Returns the interest of all samples, computed for groups of samples with histories of like length.

    With a mean length of a quarter of the longest, that takes a third of the time of one batch padded to the longest
    (SASRec forward and backward on a CPU, longest 50, 200 and 1,000). Nested tensors and FBGEMM's jagged operations
    have no product of two jagged dimensions, and pad inside; a call for each sample is slower below a length of 1,000;
    flex_attention does not train on a CPU, and has no attention without a softmax.

    Args:
        interest: Computes it from embeddings `[B, L, D]`, lengths `[B]` and targets `[B, D]`.
        history: The histories.
        target: The targets.
        length: The longest that a history may be.
    """
    lengths = history.lengths()
    if not isinstance(history, JaggedTensor) or isinstance(lengths, FakeTensor):  # exported, or without values
        return interest(history.to_padded_dense(length), lengths, target)
    return _grouped(interest, history, target)


# Compiled are the calls of `interest`, each of which is the same program for all sizes.
@torch.compiler.disable(recursive=False)
def _grouped(interest: nn.Module, history: JaggedTensor, target: Tensor) -> Tensor:
    lengths, ends = history.lengths(), history.offsets()
    # One more item, of zeros, is what histories are padded with.
    items = torch.cat([history.values(), history.values().new_zeros(1, *history.values().shape[1:])])
    found, order = [], []
    for samples, longest in _groups(lengths.cpu().numpy()):
        here = torch.from_numpy(samples).to(target.device)
        places = ends[here][:, None] + torch.arange(longest, device=target.device)
        places = places.where(within(lengths[here], longest), len(items) - 1)
        found.append(interest(items[places], lengths[here], target[here]))
        order.append(here)
    return torch.cat(found)[torch.cat(order).argsort()]


def _groups(lengths: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Yields samples whose histories are of like length, the longest first, and the greatest of their lengths."""
    order = np.argsort(-lengths, kind="stable")
    lengths, start = lengths[order], 0
    while start < len(order):
        longest = max(int(lengths[start]), 1)
        alike = np.searchsorted(-lengths, -ALIKE * longest) if longest > SHORT else len(order)
        stop = max(start + 1, min(int(alike), start + PAIRS // longest**2))
        yield order[start:stop], longest
        start = stop


def sequence_dimension(inputs: ModelInputs) -> int:
    """Returns the columns of the tables of sequences, `D`."""
    assert inputs.sequences is not None, "check_sequences refuses it"
    return inputs.sequences.embedding_dim()


def within(lengths: Tensor, length: int) -> Tensor:
    """Returns whether each place of a padded sequence is inside it, `[B, L]`, from lengths `[B]`."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]
