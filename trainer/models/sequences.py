"""Models over the vector of each sample, the item that it is about, and the history of earlier items."""

import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from trainer.models.base import ModelInputs, Predictions
from trainer.models.pooled import columns_that_share, tower, vector_width


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
        found = self.interest(history.to_padded_dense(self._length), history.lengths(), item)
        if self._adds:
            return self.over(torch.cat(parts, dim=1)) + (found * item).sum(dim=1, keepdim=True) * self.shares
        return self.over(torch.cat([*parts, found], dim=1))


def sequence_dimension(inputs: ModelInputs) -> int:
    """Returns the columns of the tables of sequences, `D`."""
    assert inputs.sequences is not None, "check_sequences refuses it"
    return inputs.sequences.embedding_dim()


def within(lengths: Tensor, length: int) -> Tensor:
    """Returns whether each place of a padded sequence is inside it, `[B, L]`, from lengths `[B]`."""
    return torch.arange(length, device=lengths.device) < lengths[:, None]
