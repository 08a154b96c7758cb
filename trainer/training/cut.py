"""The cut: backward stops at the embeddings and continues into the tables only once the step is accepted.

FBGEMM updates a table inside backward, with whatever gradient arrives there. Everything that inspects or changes
gradients before the update therefore needs the cut: microbatches, the loss scale, skipped steps, clamped gradients, an
L2 penalty of embeddings.

`Cut` is what the step uses. `CutTables` and `CutSequences` take the place of TorchRec's sharded tables: during training
they return detached leaves, and `CutEmbeddings` keeps both sides of the cut until the step ends.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torchrec.distributed.types import Awaitable, LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedTensor

from trainer.config.root import Config
from trainer.models.weighting import WEIGHTINGS
from trainer.plan.sharding import PooledTables, SequenceTables

Embeddings = TypeVar("Embeddings")
Sequences = dict[str, JaggedTensor]
"""The embeddings of the ids of every sequence, by feature."""


def needs_cut(config: Config) -> bool:
    """Returns whether the configuration needs gradients before the tables are updated."""
    train = config.train
    return (
        train.micro_batches > 1
        or train.scales_loss
        or train.nonfinite != "ignore"
        or config.optimizer.sparse.max_gradient is not None
        or config.optimizer.sparse.embedding_l2 > 0
        or WEIGHTINGS[config.model.task_weighting].needs_gradients
    )


class Cut:
    """The cut through all tables of a model.

    Args:
        model: A sharded model. Without a `CutCollection` in it nothing is cut, and every method does nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables = [module for module in model.modules() if isinstance(module, CutCollection)]

    def __bool__(self) -> bool:
        """Whether backward stops before the tables."""
        return bool(self._tables)

    @property
    def gradients(self) -> list[Tensor]:
        """This rank's gradients of embeddings, `[rows, columns]` each, not yet averaged over the ranks."""
        return [gradient for found in self.embeddings for gradient in found.gradients]

    @property
    def leaves(self) -> list[Tensor]:
        """This rank's embeddings, `[rows, columns]` each, as inputs of the dense part."""
        return [leaf for found in self.embeddings for leaf in found.leaves]

    @property
    def embeddings(self) -> "list[CutEmbeddings[Any]]":
        """The embeddings of the step in progress, one entry per collection of tables."""
        return [tables.embeddings_of_step for tables in self._tables if tables.embeddings_of_step]

    def slice_next_batch(self, slices: int) -> None:
        """Has the next batch looked up as a whole and passed to the dense part in slices."""
        for tables in self._tables:
            tables.slices = slices

    def serve_again(self) -> None:
        """Allows the model to be called again on the batch of the step in progress."""
        for found in self.embeddings:
            found.next_slice = 0

    def backward(self) -> None:
        """Continues backward into the tables, which updates sharded tables, and ends the step."""
        # Tables that the model did not use get no gradient, as without a cut. A gradient of zeros would be different:
        # it moves the rows of optimizers with momentum.
        used = [pair for found in self.embeddings if found.gradients for pair in found.backward_arguments()]
        self.end()
        if used:
            values, gradients = zip(*used, strict=True)
            torch.autograd.backward(values, gradients)

    def end(self) -> None:
        """Ends the step without an update."""
        for tables in self._tables:
            tables.embeddings_of_step, tables.slices = None, 1


class CutEmbeddings(Generic[Embeddings]):
    """The embeddings of a local batch from one collection of tables, on both sides of the cut.

    Args:
        awaitable: The tables' side, on its way between the ranks.
        slices: Number of equal slices that the dense part gets.

    Attributes:
        next_slice: Number of the slice that the dense part gets next.
    """

    def __init__(self, awaitable: Awaitable[Embeddings], slices: int) -> None:
        self._awaitable, self.slices, self.next_slice = awaitable, slices, 0
        self._wholes: list[Tensor] = []
        self._parts: list[list[Tensor]] = []  # the slices of each tensor in `_wholes`

    def take_slice(self) -> LazyAwaitable[Embeddings]:
        """Returns the next slice, without waiting for it."""
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
        """The slices, each an input of the dense part, `[rows, columns]`; empty before the first call of `slice`."""
        return [leaf for parts in self._parts for leaf in parts]

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the slices, without slices that have no gradient."""
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
        """Returns the tensors of the embeddings and, for each tensor, the number of rows in every slice."""
        raise NotImplementedError

    def _joined(self, embeddings: Embeddings, parts: list[Tensor], number: int) -> Embeddings:
        """Puts the slices of all tensors together to one slice of the embeddings."""
        raise NotImplementedError

    def _samples(self, embeddings: Embeddings) -> list[Tensor]:
        """Returns, for each tensor, the sample that each row belongs to."""
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
    """A slice of pooled embeddings; waits for them only when the model reads it."""

    def __init__(self, embeddings: PooledEmbeddings, number: int) -> None:
        super().__init__()
        self._embeddings, self._number = embeddings, number

    def _wait_impl(self) -> KeyedTensor:
        return self._embeddings.slice(self._number)


class SequenceSlice(LazyAwaitable[Sequences]):
    """A slice of the embeddings of sequences; waits for them only when the model reads it."""

    def __init__(self, embeddings: SequenceEmbeddings, number: int) -> None:
        super().__init__()
        self._embeddings, self._number = embeddings, number

    def _wait_impl(self) -> Sequences:
        return self._embeddings.slice(self._number)


class CutCollection:
    """Sharded tables whose embeddings are inputs to the rest of the model while it trains.

    Attributes:
        slices: Number of slices of the next batch. The first call of this module looks the whole batch up; each call
            returns the next slice.
        embeddings_of_step: The embeddings of the step in progress.
    """

    kind: type[CutEmbeddings[Any]]
    slices: int = 1
    embeddings_of_step: CutEmbeddings[Any] | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns the next slice."""
        # Not in `forward`: TorchRec's pipeline replaces `forward` by a function that may run only once per batch.
        found = self.embeddings_of_step
        if found and found.next_slice < found.slices:
            return found.take_slice()
        return super().__call__(*arguments, **named)  # pyrefly: ignore[missing-attribute]

    def compute_and_output_dist(self, ctx: Any, input: Any) -> Any:
        """Looks a batch up; every lookup goes through here, with or without the pipeline."""
        awaitable = super().compute_and_output_dist(ctx, input)  # pyrefly: ignore[missing-attribute]
        if not (self.training and torch.is_grad_enabled()):  # pyrefly: ignore[missing-attribute]
            return awaitable
        self.embeddings_of_step = self.kind(awaitable, self.slices)
        return self.embeddings_of_step.take_slice()


class CutTables(CutCollection, PooledTables):
    """Sharded tables of pooled features with a cut."""

    kind = PooledEmbeddings


class CutSequences(CutCollection, SequenceTables):
    """Sharded tables of sequences with a cut."""

    kind = SequenceEmbeddings
