"""What the networks of a model need to know of the samples of a step, beside their features.

The step says it before each forward, in place of an argument to every module.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn import functional as differentiable

from trainer.core.arrays import splitmix64


class StepSamples(nn.Module):
    """The samples that the networks of a model are about to compute: of a batch, of a microbatch, or some of them.

    Attributes:
        keys: A random number for each sample, `[B]` int32, a function of the seed, the step and the sample's place in
            the global batch.
        counted: 1 for samples that count in statistics, and 0 for padding and negatives, `[B]` float32.
        total: Number of the samples that count, on all ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys = torch.empty(0, dtype=torch.int32)
        self.counted, self.total = torch.empty(0), torch.zeros(())
        self._layers, self._counts, self._world_size = 0, False, 1

    def __deepcopy__(self, memo: Any) -> "StepSamples":
        """Returns itself: a copy of a model computes the same samples."""
        return self

    def new_layer(self) -> int:
        """Returns the number of a layer that draws random numbers, which no other layer of the model has."""
        self._layers += 1
        return self._layers

    def count(self) -> None:
        """Has the samples counted in each step."""
        self._counts = True

    def begin(self, seed: int, step: int, places: Tensor, weights: Tensor, world_size: int = 1) -> None:
        """Says which samples come next.

        Args:
            seed: The seed of the run.
            step: The step.
            places: Their places in the global batch, `[B]` int64.
            weights: Their weights, `[B]`.
            world_size: Number of ranks that compute samples of the same step.
        """
        self._world_size = world_size
        if self._layers:
            (of_step,) = np.random.SeedSequence((seed, step)).generate_state(1, np.uint64).view(np.int64).tolist()
            self.keys = splitmix64(places + of_step).int()
        if self._counts:
            self.counted = (weights > 0).float()
            self.total = self.sum_over_ranks(self.counted.sum())

    # No graph can hold it: compiled networks are cut here.
    @torch.compiler.disable
    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Returns the sum of the values of all ranks, through which gradients flow to each."""
        # Without gradients a single rank may be looking for what is not finite, while the others do not take part.
        if self._world_size == 1 or not torch.is_grad_enabled():
            return values
        return differentiable.all_reduce(values, dist.ReduceOp.SUM)

    @contextmanager
    def only(self, places: np.ndarray) -> Iterator[None]:
        """Inside the block the networks compute the samples at these places of the batch, in this order, `[N]`."""
        if not (self._layers and self.training):
            yield
            return
        with _Keys(self, self.keys[torch.from_numpy(places).to(self.keys.device)]):
            yield

    def now_and_later(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Returns a block for now, and one in which the networks compute the samples of now, any number of times."""
        return nullcontext(), _Keys(self, self.keys)


class _Keys(AbstractContextManager[None]):
    """A block with other keys of samples."""

    def __init__(self, samples: StepSamples, keys: Tensor) -> None:
        self._samples, self._keys, self._before = samples, keys, keys

    def __enter__(self) -> None:
        self._before, self._samples.keys = self._samples.keys, self._keys

    def __exit__(self, *_: object) -> None:
        self._samples.keys = self._before


def samples_of(model: nn.Module) -> StepSamples:
    """Returns the samples of a model, to be set before each forward in training."""
    return next((module for module in model.modules() if isinstance(module, StepSamples)), StepSamples())
