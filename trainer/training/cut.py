"""The cut: backward ends at the embeddings, and goes on into the tables only when the step is to be taken.

FBGEMM updates a table inside backward, by whatever gradient arrives there. So everything that looks at gradients or
changes them before the update has to come before that: micro-batches, the loss scale, skipped steps, clamped values.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trainer.config.root import Config
from trainer.plan.sharding import PooledTables, SequenceTables
from trainer.training.cut_embeddings import CutEmbeddings, PooledEmbeddings, SequenceEmbeddings


class CutCollection:
    """Sharded tables whose embeddings are inputs to the rest of the model while it trains.

    Attributes:
        slices: Slices of the next batch; each call of this module returns another, the first one looks all of them up.
        embeddings_of_step: The embeddings of the step in progress.
    """

    kind: type[CutEmbeddings[Any]]
    slices: int = 1
    embeddings_of_step: CutEmbeddings[Any] | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns the next slice."""
        # Not in `forward`, which TorchRec's pipeline replaces by one that may run only once for a batch.
        found = self.embeddings_of_step
        if found and found.next_slice < found.slices:
            return found.take_slice()
        return super().__call__(*arguments, **named)  # pyrefly: ignore[missing-attribute]

    def compute_and_output_dist(self, ctx: Any, input: Any) -> Any:
        """Looks a batch up; the only way to the embeddings, pipelined or not."""
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


class Cut:
    """The cut through all tables of a model.

    Args:
        model: A sharded model. Without a `CutCollection` in it nothing is cut, and all of this does nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        self._tables = [module for module in model.modules() if isinstance(module, CutCollection)]

    def __bool__(self) -> bool:
        """Whether backward stops before the tables."""
        return bool(self._tables)

    @property
    def gradients(self) -> list[Tensor]:
        """This rank's gradients of embeddings, `[rows, columns]` each, the mean over ranks still to be taken."""
        return [gradient for found in self.embeddings for gradient in found.gradients]

    @property
    def leaves(self) -> list[Tensor]:
        """This rank's embeddings, `[rows, columns]` each, as inputs of the dense part."""
        return [leaf for found in self.embeddings for leaf in found.leaves]

    @property
    def embeddings(self) -> list[CutEmbeddings[Any]]:
        """The embeddings of the step in progress, of each collection of tables."""
        return [tables.embeddings_of_step for tables in self._tables if tables.embeddings_of_step]

    def slice_next_batch(self, slices: int) -> None:
        """Lets the next batch be looked up as a whole, and be trained on in slices."""
        for tables in self._tables:
            tables.slices = slices

    def serve_again(self) -> None:
        """Lets the model be called on the batch of the step in progress once more."""
        for found in self.embeddings:
            found.next_slice = 0

    def clamp(self, max_gradient: float | None, world_size: int) -> None:
        """Clamps each value of the gradients, in place, to a size that does not depend on plan and ranks."""
        if max_gradient is not None:
            for gradient in self.gradients:
                gradient.clamp_(-max_gradient * world_size, max_gradient * world_size)

    def backward(self) -> None:
        """Continues backward into the tables, which updates the sharded ones, and ends the step."""
        # As in a backward without a cut, what the model made no use of gets no gradient.
        used = [pair for found in self.embeddings if found.gradients for pair in found.backward_arguments()]
        self.end()
        if used:
            values, gradients = zip(*used, strict=True)
            torch.autograd.backward(values, gradients)

    def end(self) -> None:
        """Ends the step without an update."""
        for tables in self._tables:
            tables.embeddings_of_step, tables.slices = None, 1


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
