"""Steps whose loss or gradients are not finite: the check, the skipped step, and the search for the samples behind it.

The check stands between backward and the updates, so it needs the cut (`cut.py`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree as pytree
from torchrec.distributed.model_parallel import DistributedModelParallel

from trainer.batches.batch import Batch
from trainer.config.train import TrainConfig
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.errors import InputError
from trainer.training.cut import Cut
from trainer.training.loss_scale import LossScale, StepState
from trainer.training.sharded_model import ShardedModel

MOST_SAMPLES = 5  # number of samples that a message names


class FiniteCheck:
    """Checks a step between backward and the updates. Does nothing unless the configuration needs the check.

    Args:
        model: The model.
        config: What happens at a step that is not finite.
        context: This process among the ranks.
        loss_scale: The scale, by which the gradients are divided.
        state: Counts the skipped steps.
        locate: Returns where a sample is in the files, by a step and a position in its global batch.
    """

    def __init__(
        self,
        model: ShardedModel,
        config: TrainConfig,
        context: DistributedContext,
        loss_scale: LossScale,
        state: StepState,
        locate: Callable[[int, int], str],
    ) -> None:
        self._model, self._config, self._context = model, config, context
        self._loss_scale, self._state, self._locate = loss_scale, state, locate
        self._active = loss_scale.active or config.nonfinite != "ignore"
        self._buffers: list[tuple[Tensor, Tensor]] = []

    def before_forward(self) -> None:
        """Copies the state that forward itself changes, such as the running means of batch normalization."""
        if self._active:
            self._buffers = [(buffer, buffer.clone()) for buffer in self._model.model.buffers()]

    def passes(self, loss: Tensor) -> bool:
        """Divides the gradients by the loss scale; returns whether they and the loss are finite on all ranks."""
        if not self._active:
            return True
        dense = [weight.grad for weight in self._model.optimizers.dense_parameters if weight.grad is not None]
        finite = self._loss_scale.unscale([*dense, *self._model.cut.gradients, loss.clone()])
        if finite:
            self._loss_scale.update(finite)
        return finite

    def skip(self, step: int, batch: Batch) -> None:
        """Skips the step: model and optimizers stay as they were before it.

        Raises:
            InputError: The configuration does not let such a step be skipped.
            SystemExit: The same, on the other ranks.
        """
        # An overflow is how the loss scale finds its value, and no error, until the scale is too low to cause it.
        if self._config.nonfinite != "skip" and (self._loss_scale.is_least or not self._loss_scale.active):
            self._refuse(step, batch)
        for buffer, before in self._buffers:
            buffer.copy_(before)
        self._model.cut.end()
        self._state.skipped += 1
        self._loss_scale.update(finite=False)

    def _refuse(self, step: int, batch: Batch) -> None:
        where = partial(self._locate, step)
        micro_batches = batch.split(self._config.micro_batches)
        found = explain(self._model.model, self._model.cut, micro_batches, self._context, where)

        def refuse() -> None:
            raise InputError(
                f"step {step}: {found}; train.nonfinite is '{self._config.nonfinite}': look at these samples, lower "
                "the learning rates, or use 'skip' to leave such steps out"
            )

        broadcast_from_rank0(self._context, refuse)


@dataclass(frozen=True)
class NonfiniteValues:
    """The values of a rank that are not finite.

    Attributes:
        forward: The first output of the model that is not finite; empty if all are.
        backward: The first gradient that is not finite; empty if all are.
        positions: Positions in the global batch of samples whose embeddings or gradients are not finite.
    """

    forward: str
    backward: str
    positions: list[int]


def explain(
    model: DistributedModelParallel,
    cut: Cut,
    micro_batches: list[Batch],
    context: DistributedContext,
    where: Callable[[int], str],
) -> str:
    """Describes the values of the step in progress that are not finite, on any rank. All ranks have to call it.

    Args:
        model: The model, before its update.
        cut: The cut, which still holds the embeddings of the batch.
        micro_batches: The local batch, in the slices that the step computed.
        context: This process among the ranks.
        where: Returns where a sample is in the files, by its position in the global batch.
    """
    of_ranks = gather_to_all(_search(model.module, cut, micro_batches, context), context)
    culprit = next((found.forward for found in of_ranks if found.forward), None) or next(
        (found.backward for found in of_ranks if found.backward), "a gradient"
    )
    positions = sorted(position for found in of_ranks for position in found.positions)
    samples = "; ".join(f"position {position}, {where(position)}" for position in positions[:MOST_SAMPLES])
    if not positions:
        return f"{culprit} is not finite"
    more = f"; and {len(positions) - MOST_SAMPLES} more" if len(positions) > MOST_SAMPLES else ""
    return f"{culprit} is not finite; samples of the batch: {samples}{more}"


def _search(model: nn.Module, cut: Cut, micro_batches: list[Batch], context: DistributedContext) -> NonfiniteValues:
    first = context.rank * sum(len(batch.labels) for batch in micro_batches)
    positions = sorted({first + row for row in _nonfinite_rows(cut)})
    forward = _first_tables(cut) or _first_module(model, cut, micro_batches)
    return NonfiniteValues(forward, _first_gradient(model, cut), positions)


def _nonfinite_rows(cut: Cut) -> Iterator[int]:
    """Yields the local samples whose embeddings or gradients of embeddings are not finite."""
    for embeddings in cut.embeddings:
        for leaf, samples in embeddings.rows_with_samples():
            for values in (leaf, leaf.grad):
                if values is not None:
                    yield from samples[(~values.isfinite()).any(dim=1).cpu()].tolist()


def _first_tables(cut: Cut) -> str:
    """Returns the first feature whose embeddings are not finite, for messages."""
    for embeddings in cut.embeddings:
        for number in range(embeddings.slices if embeddings.leaves else 0):
            for name, values in embeddings.by_feature(number).items():
                if not values.isfinite().all():
                    return f"the embeddings of '{name}'"
    return ""


def _first_module(model: nn.Module, cut: Cut, micro_batches: list[Batch]) -> str:
    """Computes the batch again and returns the first module whose output is not finite."""
    # Modules inside the losses of tasks are left out: their names mean nothing to a user.
    names = {module: "" if name.startswith("losses") else name for name, module in model.named_modules()}
    found = []

    def check(module: nn.Module, _: Any, output: Any) -> None:
        tensors = [value for value in pytree.tree_leaves(output) if isinstance(value, Tensor)]
        if not found and not all(value.isfinite().all() for value in tensors if value.is_floating_point()):
            found.append(names.get(module, type(module).__name__))

    cut.serve_again()
    hook = register_module_forward_hook(check)  # inner modules come before the modules around them
    try:
        with torch.no_grad():
            for batch in micro_batches:
                model(batch)
    finally:
        hook.remove()
    return "" if not found else f"the output of module '{found[0]}'" if found[0] else "the loss"


def _first_gradient(model: nn.Module, cut: Cut) -> str:
    if not all(gradient.isfinite().all() for gradient in cut.gradients):
        return "the gradient of the embeddings"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of '{name}'"
    return ""
