"""Averages gradients over ranks on CPUs, in as few exchanges as there can be."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

# Larger gradients are exchanged where they are, as a copy would take memory that no plan counts.
TOGETHER_BYTES = 2**20


class GradientAverage:
    """Averages the gradients of weights that every rank holds whole, in one exchange of all small ones together.

    On a GPU DistributedDataParallel averages them while backward computes. A CPU has no core to spare for that: there
    each of its exchanges is another wait of the ranks for one another. It needs one for the gradients, one for which of
    them there are, and more for replicated tables.

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
