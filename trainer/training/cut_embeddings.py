"""The embeddings of a local batch at the cut, which the dense part gets in slices."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torchrec.distributed.types import Awaitable, LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor

Embeddings = TypeVar("Embeddings")


class CutEmbeddings(Generic[Embeddings]):
    """The embeddings of a local batch out of one collection of tables, on either side of the cut.

    Args:
        awaitable: The tables' side, on its way between the ranks.
        slices: Equal slices of the batch on the dense part's side.

    Attributes:
        next_slice: Number of the slice that the dense part gets next.
    """

    def __init__(self, awaitable: Awaitable[Embeddings], slices: int) -> None:
        self._awaitable, self.slices, self.next_slice = awaitable, slices, 0
        self._wholes: list[Tensor] = []
        self._parts: list[list[Tensor]] = []  # of each whole, by slice

    def take_slice(self) -> LazyAwaitable[Embeddings]:
        """Returns the next slice, for which nobody waits yet."""
        self.next_slice += 1
        return self._lazy(self.next_slice - 1)

    def slice(self, number: int) -> Embeddings:
        """Waits for the embeddings and returns a slice of them."""
        if not self._parts:
            self._embeddings = self._awaitable.wait()
            self._wholes, sizes = self._cut(self._embeddings)
            self._parts = [
                [part.detach().requires_grad_() for part in whole.split(rows)]
                for whole, rows in zip(self._wholes, sizes, strict=True)
            ]
        return self._joined(self._embeddings, [parts[number] for parts in self._parts], number)

    @property
    def leaves(self) -> list[Tensor]:
        """The slices, each an input of the dense part, `[rows, columns]`; empty until the first is asked for."""
        return [leaf for parts in self._parts for leaf in parts]

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the slices that have one."""
        return [leaf.grad for leaf in self.leaves if leaf.grad is not None]

    def backward_arguments(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the tensors of the tables' side, each with its gradient, `[rows, columns]` each."""
        for whole, parts in zip(self._wholes, self._parts, strict=True):
            gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in parts]
            yield whole, gradients[0] if self.slices == 1 else torch.cat(gradients)

    def rows_with_samples(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields every leaf, `[rows, columns]`, with the local sample that each row belongs to, `[rows]`."""
        if not self._parts:
            return
        for samples, parts in zip(self._samples(self._embeddings), self._parts, strict=True):
            yield from zip(parts, samples.split([len(part) for part in parts]), strict=True)

    def by_feature(self, number: int) -> dict[str, Tensor]:
        """Returns the embeddings in a slice by feature, `[rows, columns]` each."""
        raise NotImplementedError

    def _lazy(self, number: int) -> LazyAwaitable[Embeddings]:
        raise NotImplementedError

    def _cut(self, embeddings: Embeddings) -> tuple[list[Tensor], list[list[int]]]:
        """Returns the tensors of the embeddings, and the rows of each slice of each of them."""
        raise NotImplementedError

    def _joined(self, embeddings: Embeddings, parts: list[Tensor], number: int) -> Embeddings:
        """Returns a slice made of the slices of all tensors."""
        raise NotImplementedError

    def _samples(self, embeddings: Embeddings) -> list[Tensor]:
        """Returns the sample that each row of each tensor belongs to."""
        raise NotImplementedError


class PooledEmbeddings(CutEmbeddings[KeyedTensor]):
    """Pooled embeddings, one tensor `[B, columns of all features]`."""

    def _lazy(self, number: int) -> LazyAwaitable[KeyedTensor]:
        return PooledSlice(self, number)

    def _cut(self, embeddings: KeyedTensor) -> tuple[list[Tensor], list[list[int]]]:
        rows = len(embeddings.values()) // self.slices
        return [embeddings.values()], [[rows] * self.slices]

    def _joined(self, embeddings: KeyedTensor, parts: list[Tensor], number: int) -> KeyedTensor:
        return KeyedTensor(embeddings.keys(), embeddings.length_per_key(), parts[0], embeddings.key_dim())

    def _samples(self, embeddings: KeyedTensor) -> list[Tensor]:
        return [torch.arange(len(embeddings.values()))]

    def by_feature(self, number: int) -> dict[str, Tensor]:
        """Returns the embeddings in a slice by feature, `[B / slices, columns]` each."""
        return self.slice(number).to_dict()


Sequences = dict[str, JaggedTensor]
"""The embeddings of the ids of every sequence, by feature."""


class SequenceEmbeddings(CutEmbeddings[Sequences]):
    """Embeddings of sequences, a tensor `[ids of the batch, columns]` for each feature."""

    def _lazy(self, number: int) -> LazyAwaitable[Sequences]:
        return SequenceSlice(self, number)

    def _cut(self, embeddings: Sequences) -> tuple[list[Tensor], list[list[int]]]:
        values = [sequence.values() for sequence in embeddings.values()]
        return values, [self._lengths(sequence).sum(dim=1).tolist() for sequence in embeddings.values()]

    def _joined(self, embeddings: Sequences, parts: list[Tensor], number: int) -> Sequences:
        return {
            feature: JaggedTensor(part, lengths=self._lengths(sequence)[number])
            for (feature, sequence), part in zip(embeddings.items(), parts, strict=True)
        }

    def _samples(self, embeddings: Sequences) -> list[Tensor]:
        lengths = [sequence.lengths().cpu() for sequence in embeddings.values()]
        return [torch.arange(len(one)).repeat_interleave(one) for one in lengths]

    def by_feature(self, number: int) -> dict[str, Tensor]:
        """Returns the embeddings in a slice by feature, `[ids of the slice, columns]` each."""
        return {feature: sequence.values() for feature, sequence in self.slice(number).items()}

    def _lengths(self, sequence: JaggedTensor) -> Tensor:
        return sequence.lengths().view(self.slices, -1)


class PooledSlice(LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """A slice of pooled embeddings, waited for as late as the model allows."""

    def __init__(self, embeddings: PooledEmbeddings, number: int) -> None:
        super().__init__()
        self._embeddings, self._number = embeddings, number

    def _wait_impl(self) -> KeyedTensor:
        return self._embeddings.slice(self._number)


class SequenceSlice(LazyAwaitable[Sequences]):
    """A slice of the embeddings of sequences, waited for as late as the model allows."""

    def __init__(self, embeddings: SequenceEmbeddings, number: int) -> None:
        super().__init__()
        self._embeddings, self._number = embeddings, number

    def _wait_impl(self) -> Sequences:
        return self._embeddings.slice(self._number)
