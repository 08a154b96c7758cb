"""Gradients before an update: averaged over ranks on CPUs, with the gradient of an L2 penalty, and clipped."""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config.optimizer import DenseOptimizerConfig

# Larger gradients are exchanged in place, because a copy would take memory that no plan counts.
TOGETHER_BYTES = 2**20


class GradientAverage:
    """Averages the gradients of weights that every rank holds; all small gradients go in a single exchange.

    On a GPU, DistributedDataParallel averages them while backward computes. A CPU has no core to spare, so each of its
    exchanges makes the ranks wait: one for the gradients, one for the set of weights that have any, and more for
    replicated tables.

    Args:
        weights: The weights, the same on every rank.
        world_size: Number of ranks.
    """

    def __init__(self, weights: Sequence[Tensor], world_size: int) -> None:
        self._world_size = world_size
        self._small = [one for one in weights if _is_small(one)]
        self._large = [one for one in weights if not _is_small(one)]
        sizes = [*(one.numel() for one in self._small), len(weights)]
        # The gradients and, behind them, which part of the ranks has a gradient for each weight.
        self._together = torch.zeros(sum(sizes))
        *parts, self._present = self._together.split(sizes)
        self._parts = [part.view_as(one) for part, one in zip(parts, self._small, strict=True)]

    def __call__(self) -> None:
        """Averages the gradients of a step; a weight that no rank has used keeps none."""
        weights = [*self._small, *self._large]
        if not weights:
            return
        for weight, part in zip(self._small, self._parts, strict=True):
            part.zero_() if weight.grad is None else part.copy_(weight.grad)
        large = [torch.zeros_like(one) if one.grad is None else one.grad for one in self._large]
        self._present.copy_(torch.tensor([float(one.grad is not None) for one in weights]))
        exchanged = [self._together, *large]
        torch._foreach_div_(exchanged, self._world_size)
        for gradient in exchanged:
            dist.all_reduce(gradient)
        for weight, gradient, part in zip(weights, [*self._parts, *large], self._present.tolist(), strict=True):
            weight.grad = gradient if part else None


def _is_small(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.nbytes < TOGETHER_BYTES


def clip(parameters: Iterable[nn.Parameter], config: DenseOptimizerConfig) -> Tensor | None:
    """Clips gradients in place, by their norm or by their values, as configured.

    Needs no collective: every rank has the same gradients of the dense part, averaged over the ranks.

    Returns:
        The norm of all gradients together before clipping; None if clipping is off.
    """
    if config.max_norm is None and config.max_value is None:
        return None
    trained = [parameter for parameter in parameters if parameter.grad is not None]
    if config.max_norm is not None:
        return nn.utils.clip_grad_norm_(trained, config.max_norm, config.norm_type)
    norm = nn.utils.get_total_norm([parameter.grad for parameter in trained], config.norm_type)  # pyrefly: ignore
    assert config.max_value is not None
    nn.utils.clip_grad_value_(trained, config.max_value)
    return norm


def penalize(embeddings: Iterable[Tensor], l2: float, global_batch_size: int, world_size: int) -> None:
    """Adds the gradient of an L2 penalty, `l2 / (2 global_batch_size) * sum of squares`, to those of embeddings.

    Args:
        embeddings: This rank's embeddings as inputs of the dense part; those without a gradient are left out.
        l2: The penalty's factor; 0 adds nothing.
        global_batch_size: Samples of a step.
        world_size: Number of ranks, over which the mean is still to be taken.
    """
    for embedding in embeddings if l2 else ():
        if embedding.grad is not None:
            embedding.grad.add_(embedding.detach(), alpha=l2 * world_size / global_batch_size)


def clamp(gradients: Iterable[Tensor], max_gradient: float | None, world_size: int) -> None:
    """Clamps each value of the tables' gradients, in place, to a size that does not depend on plan and ranks.

    Args:
        gradients: This rank's gradients of embeddings, the mean over ranks still to be taken.
        max_gradient: The largest absolute value; None clamps nothing.
        world_size: Number of ranks.
    """
    if max_gradient is not None:
        for gradient in gradients:
            gradient.clamp_(-max_gradient * world_size, max_gradient * world_size)
