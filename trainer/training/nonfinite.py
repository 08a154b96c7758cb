"""Finds where a step's values are no longer finite: the first module, and the samples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree as pytree
from torchrec.distributed.model_parallel import DistributedModelParallel

from trainer.core.distributed import DistributedContext, gather_to_all
from trainer.data.batch import Batch
from trainer.training.cut import Cut

MOST_SAMPLES = 5  # in a message


@dataclass(frozen=True)
class Finding:
    """What one rank found.

    Attributes:
        forward: The first output of the model that is not finite; empty if all are.
        backward: The first gradient that is not.
        positions: Samples of the global batch that values belong to which are not finite.
    """

    forward: str
    backward: str
    positions: list[int]


def explain(
    model: DistributedModelParallel,
    cut: Cut,
    parts: list[Batch],
    context: DistributedContext,
    where: Callable[[int], str],
) -> str:
    """Returns what is not finite in the step in progress, by any rank's findings; to be called on all ranks.

    Args:
        model: The model, not yet updated.
        cut: Its cut, where the embeddings of the batch still are.
        parts: The local batch, in the slices that it was computed in.
        context: This process among the ranks.
        where: Returns where a sample is in the files, by its position in the global batch.
    """
    found = gather_to_all(_search(model.module, cut, parts, context), context)
    culprit = next((one.forward for one in found if one.forward), None) or next(
        (one.backward for one in found if one.backward), "a gradient"
    )
    positions = sorted(position for one in found for position in one.positions)
    samples = "; ".join(f"position {position}, {where(position)}" for position in positions[:MOST_SAMPLES])
    if not positions:
        return f"{culprit} is not finite"
    more = f"; and {len(positions) - MOST_SAMPLES} more" if len(positions) > MOST_SAMPLES else ""
    return f"{culprit} is not finite; samples of the batch: {samples}{more}"


def _search(model: nn.Module, cut: Cut, parts: list[Batch], context: DistributedContext) -> Finding:
    first = context.rank * sum(len(part.labels) for part in parts)
    positions = sorted({first + row for row in _bad_rows(cut)})
    return Finding(_first_tables(cut) or _first_module(model, cut, parts), _first_gradient(model, cut), positions)


def _bad_rows(cut: Cut) -> Iterator[int]:
    """Yields this rank's samples whose embeddings, or the gradients of these, are not finite."""
    for embeddings in cut.embeddings:
        for leaf, samples in embeddings.rows_with_samples():
            for values in (leaf, leaf.grad):
                if values is not None:
                    yield from samples[(~values.isfinite()).any(dim=1).cpu()].tolist()


def _first_tables(cut: Cut) -> str:
    """Returns the first features whose embeddings are not finite."""
    for embeddings in cut.embeddings:
        for number in range(embeddings.slices if embeddings.leaves else 0):
            for name, values in embeddings.by_feature(number).items():
                if not values.isfinite().all():
                    return f"the embeddings of '{name}'"
    return ""


def _first_module(model: nn.Module, cut: Cut, parts: list[Batch]) -> str:
    """Computes the batch again and returns the first module whose output is not finite."""
    # Modules inside the losses of the tasks have names that say nothing to a user.
    names = {module: "" if name.startswith("losses") else name for name, module in model.named_modules()}
    found = []

    def check(module: nn.Module, _: Any, output: Any) -> None:
        tensors = [value for value in pytree.tree_leaves(output) if isinstance(value, Tensor)]
        if not found and not all(value.isfinite().all() for value in tensors if value.is_floating_point()):
            found.append(names.get(module, type(module).__name__))

    cut.serve_again()
    hook = register_module_forward_hook(check)  # a module is called after those inside it
    try:
        with torch.no_grad():
            for part in parts:
                model(part)
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
