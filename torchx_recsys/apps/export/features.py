"""Ids of a feature in plain tensors, with embeddings pooled or as sequences."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Table(nn.Module):
    """An embedding table as it was trained.

    Args:
        weight: `[R, D]`.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Returns the embeddings of rows, `[...]` int64 to `[..., D]` float32."""
        return functional.embedding(rows, self.weight).float()


@dataclass(frozen=True)
class SingleIds:
    """At most one id for each sample.

    Attributes:
        rows: Row of each sample's id, `[B]` int64; or the embedding, `[B, D]`, as below.
        present: Whether the sample has an id, `[B]`.
        weights: Weight of the id, `[B]` float32; 1 if unset.
    """

    rows: Tensor
    present: Tensor
    weights: Tensor | None = None

    @property
    def samples(self) -> int:
        """Number of the samples, `B`."""
        return self.present.shape[0]

    def pooled(self, table: nn.Module, pooling: str) -> Tensor:
        """Returns the embeddings, `[B, D]`, zeros without an id. Without weights, sum and mean are equal."""
        found = table(self.rows)
        if self.weights is not None:
            found = _pooled(_weighted(found, self.weights), pooling)
        return torch.where(self.present[:, None], found, 0.0)

    def of_weights(self) -> "SingleIds":
        """Returns the weights in place of the ids."""
        return replace(self, rows=self.weights, weights=None)

    def to_padded_dense(self, length: int) -> Tensor:
        """Returns the ids themselves, which pooling raw leaves as they are, `[B, 1]`; 0 without an id."""
        return torch.where(self.present, self.rows, 0)[:, None]

    def sequence(self, table: nn.Module, length: int) -> "Sequence":
        """Returns sequences of at most one id."""
        return Sequence(self.pooled(table, "sum")[:, None], self.present.int())


@dataclass(frozen=True)
class IdLists:
    """A list of ids for each sample.

    Attributes:
        rows: Rows of all ids, `[N]` int64; or their embeddings, `[N, D]`, for tables that return their input.
        lengths: Ids of each sample, `[B]` int64.
        longest: Most ids of a list that count; all if unset.
        first: Whether the first ids of a list count, else the last.
        weights: Weights of all ids, `[N]` float32; 1 if unset.
    """

    rows: Tensor
    lengths: Tensor
    longest: int | None = None
    first: bool = False
    weights: Tensor | None = None

    @property
    def samples(self) -> int:
        """Number of the samples, `B`."""
        return self.lengths.shape[0]

    def pooled(self, table: nn.Module, pooling: str) -> Tensor:
        """Returns the pooled embeddings, `[B, D]`, zeros for an empty list."""
        if self.weights is not None:
            given = replace(self, rows=_weighted(table(self.rows), self.weights), weights=None)
            return _pooled(given.pooled(nn.Identity(), "sum"), pooling)
        if self.longest is not None:
            sequence = self.sequence(table, self.longest)
            total = sequence.to_padded_dense().sum(1)
            return total / sequence.lengths().clamp(min=1)[:, None] if pooling == "mean" else total
        # Looked up first, so that quantized rows take the same path. One extra row covers batches without ids.
        found = table(self._rows_and_one())
        places = torch.arange(self.rows.shape[0], device=self.rows.device)
        offsets = functional.pad(self.lengths.cumsum(0), (1, 0))
        return functional.embedding_bag(places, found, offsets, mode=pooling, include_last_offset=True)

    def of_weights(self) -> "IdLists":
        """Returns the weights in place of the ids."""
        return replace(self, rows=self.weights, weights=None)

    def to_padded_dense(self, length: int) -> Tensor:
        """Returns the ids themselves, which pooling raw leaves as they are, `[B, length]`, padded with 0."""
        return self.sequence(nn.Unflatten(1, (length, 1)), length).to_padded_dense().squeeze(2)

    def sequence(self, table: nn.Module, length: int) -> "Sequence":
        """Returns the embeddings of the last or first ids of each list, at most `length`."""
        lengths, places = self.lengths.clamp(max=length), torch.arange(length, device=self.rows.device)
        inside = places < lengths[:, None]
        start = self.lengths.cumsum(0) - (self.lengths if self.first else lengths)
        rows = self._rows_and_one()[torch.where(inside, start[:, None] + places, self.rows.shape[0])]
        return Sequence(torch.where(inside[:, :, None], table(rows), 0), lengths.int())

    def _rows_and_one(self) -> Tensor:
        return torch.cat([self.rows, self.rows.new_zeros(1, *self.rows.shape[1:])])


Ids = SingleIds | IdLists


class Features(dict[str, Ids]):
    """The ids of the sparse features of a batch.

    Args:
        ids: The ids, by feature.
        samples: Number of the samples, `B`.
    """

    def __init__(self, ids: Mapping[str, Ids], samples: int) -> None:
        super().__init__(ids)
        self.samples = samples


def _weighted(embeddings: Tensor, weights: Tensor) -> Tensor:
    """Returns embeddings times their weights, and the weights as a last column to sum, `[N, D + 1]`."""
    return torch.cat([embeddings * weights[:, None], weights[:, None]], dim=1)


def _pooled(sums: Tensor, pooling: str) -> Tensor:
    """Returns the sum or mean, `[B, D]`, for sums of `_weighted`; a total weight of 0 counts as no ids."""
    total, weight = sums[:, :-1], sums[:, -1:]
    return total / torch.where(weight > 0, weight, 1.0) if pooling == "mean" else total


class Sequence:
    """Sequences of embeddings, with the methods of TorchRec's JaggedTensor whose sizes do not depend on values.

    Args:
        embeddings: Oldest first, padded with zeros, `[B, L, D]`.
        lengths: `[B]` int32.
    """

    def __init__(self, embeddings: Tensor, lengths: Tensor) -> None:
        self._embeddings, self._lengths = embeddings, lengths

    def lengths(self) -> Tensor:
        """Returns the lengths, `[B]` int32."""
        return self._lengths

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor:
        """Returns the first `desired_length` embeddings of each, padded, `[B, desired_length, D]`."""
        length = self._embeddings.shape[1]
        found = functional.pad(self._embeddings, (0, 0, 0, (desired_length or length) - length))
        if padding_value == 0.0:
            return found
        places = torch.arange(found.shape[1], device=found.device)
        return torch.where((places < self._lengths[:, None])[:, :, None], found, padding_value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a sequence has to_padded_dense() and lengths() when it is exported, and no {name}")
