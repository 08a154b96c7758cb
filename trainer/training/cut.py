"""The cut: backward ends at the pooled embeddings, and goes on into the tables only when the step is to be taken.

FBGEMM updates a table inside backward, by whatever gradient arrives there. So everything that looks at gradients or
changes them before the update has to come before that: micro-batches, the loss scale, skipped steps, clamped values.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import Awaitable, LazyAwaitable, LazyGetItemMixin
from torchrec.sparse.jagged_tensor import KeyedTensor

from trainer.config.root import Config


class PooledEmbeddings:
    """The pooled embeddings of a local batch, on either side of the cut.

    Args:
        awaitable: The tables' side, on its way between the ranks.
        slices: Equal slices of the batch on the dense part's side.

    Attributes:
        leaves: The slices, each an input of the dense part, `[B / slices, D]`; empty until the first is asked for.
        next_slice: Number of the slice that the dense part gets next.
    """

    def __init__(self, awaitable: Awaitable[KeyedTensor], slices: int) -> None:
        self._awaitable, self.slices, self.next_slice = awaitable, slices, 0
        self.leaves: list[Tensor] = []

    def take_slice(self) -> "Slice":
        """Returns the next slice, for which nobody waits yet."""
        self.next_slice += 1
        return Slice(self, self.next_slice - 1)

    def slice(self, number: int) -> KeyedTensor:
        """Waits for the pooled embeddings and returns a slice of them."""
        if not self.leaves:
            self._pooled = self._awaitable.wait()
            self.leaves = [part.detach().requires_grad_() for part in self._pooled.values().chunk(self.slices)]
        keys, widths = self._pooled.keys(), self._pooled.length_per_key()
        return KeyedTensor(keys, widths, self.leaves[number], self._pooled.key_dim())

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the slices that have one."""
        return [leaf.grad for leaf in self.leaves if leaf.grad is not None]

    def backward_arguments(self) -> tuple[Tensor, Tensor]:
        """Returns the tables' side and its gradient, `[B, D]` each."""
        whole = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in self.leaves]
        return self._pooled.values(), whole[0] if self.slices == 1 else torch.cat(whole)


class Slice(LazyGetItemMixin[str, Tensor], LazyAwaitable[KeyedTensor]):
    """A slice of the pooled embeddings, waited for as late as the model allows."""

    def __init__(self, pooled: PooledEmbeddings, number: int) -> None:
        super().__init__()
        self._pooled_embeddings, self._number = pooled, number

    def _wait_impl(self) -> KeyedTensor:
        return self._pooled_embeddings.slice(self._number)


class CutTables(ShardedEmbeddingBagCollection):
    """Sharded tables whose pooled embeddings are inputs to the rest of the model while it trains.

    Attributes:
        slices: Slices of the next batch; each call of this module returns another, the first one looks all of them up.
        pooled: The pooled embeddings of the step in progress.
    """

    slices: int = 1
    pooled: PooledEmbeddings | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns the next slice."""
        # Not in `forward`, which TorchRec's pipeline replaces by one that may run only once for a batch.
        if self.pooled and self.pooled.next_slice < self.pooled.slices:
            return self.pooled.take_slice()
        return super().__call__(*arguments, **named)

    def compute_and_output_dist(self, ctx: Any, input: Any) -> LazyAwaitable[KeyedTensor]:
        """Looks a batch up; the only way to the pooled embeddings, pipelined or not."""
        awaitable = super().compute_and_output_dist(ctx, input)
        if not (self.training and torch.is_grad_enabled()):
            return awaitable
        self.pooled = PooledEmbeddings(awaitable, self.slices)
        return self.pooled.take_slice()


class Cut:
    """The cut through all tables of a model.

    Args:
        model: A sharded model. Without `CutTables` in it nothing is cut, and all of this does nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables = [module for module in model.modules() if isinstance(module, CutTables)]

    def __bool__(self) -> bool:
        """Whether backward stops before the tables."""
        return bool(self._tables)

    @property
    def gradients(self) -> list[Tensor]:
        """This rank's gradients of pooled embeddings, `[B / slices, D]` each, the mean over ranks still to be taken."""
        return [gradient for pooled in self.pooled for gradient in pooled.gradients]

    @property
    def leaves(self) -> list[Tensor]:
        """This rank's pooled embeddings, `[B / slices, D]` each, as inputs of the dense part."""
        return [leaf for pooled in self.pooled for leaf in pooled.leaves]

    @property
    def pooled(self) -> list[PooledEmbeddings]:
        """The pooled embeddings of the step in progress, of each collection of tables."""
        return [tables.pooled for tables in self._tables if tables.pooled]

    def slice_next_batch(self, slices: int) -> None:
        """Lets the next batch be looked up as a whole, and be trained on in slices."""
        for tables in self._tables:
            tables.slices = slices

    def serve_again(self) -> None:
        """Lets the model be called on the batch of the step in progress once more."""
        for pooled in self.pooled:
            pooled.next_slice = 0

    def clamp(self, max_gradient: float | None, world_size: int) -> None:
        """Clamps each value of the gradients, in place, to a size that does not depend on plan and ranks."""
        if max_gradient is not None:
            for gradient in self.gradients:
                gradient.clamp_(-max_gradient * world_size, max_gradient * world_size)

    def backward(self) -> None:
        """Continues backward into the tables, which updates the sharded ones, and ends the step."""
        # As in a backward without a cut, what the model made no use of gets no gradient.
        used = [pooled.backward_arguments() for pooled in self.pooled if pooled.gradients]
        self.end()
        if used:
            values, gradients = zip(*used, strict=True)
            torch.autograd.backward(values, gradients)

    def end(self) -> None:
        """Ends the step without an update."""
        for tables in self._tables:
            tables.pooled, tables.slices = None, 1


def needs_cut(config: Config) -> bool:
    """Returns whether anything has to be done between the gradients and the update of the tables."""
    train = config.train
    return (
        train.micro_batches > 1
        or train.scales_loss
        or train.nonfinite != "ignore"
        or config.optimizer.sparse.max_gradient is not None
        or config.model.task_weighting == "pareto"
    )
