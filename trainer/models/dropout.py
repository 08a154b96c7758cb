"""Dropout whose masks are a function of the run's seed, the step, the sample, the layer and the column.

So no state has to be saved: a resumed run draws the masks of an uninterrupted one, and so does any number of ranks and
of microbatches. Torch's own dropout takes the next numbers of a generator, other ones on a GPU than on a CPU.
"""

from math import prod

import torch
from torch import Tensor, nn

from trainer.core.arrays import splitmix64
from trainer.models.step_samples import StepSamples

FACTORS = 0x7FEB352D, -0x7B935975  # of a 32-bit hash with little bias, by Christopher Wellons' search


class Dropout(nn.Module):
    """Sets a share of the values of each sample to zero and scales up the others, in training only.

    Args:
        rate: The share.
        samples: The samples of the model.
        from_the_end: Whether `[B, L, ...]` is padded at the beginning, so that places count from the end. The mask of a
            place does not depend on the padding, which depends on what other samples a rank has.
    """

    def __init__(self, rate: float, samples: StepSamples, from_the_end: bool = False) -> None:
        super().__init__()
        self.samples, self._rate, self._from_the_end = samples, rate, from_the_end
        self._layer = samples.new_layer()

    def forward(self, values: Tensor) -> Tensor:
        """Returns values of the same shape, `[B, ...]`."""
        if not self.training:
            return values
        return values.masked_fill(self._dropped(values), 0.0) * (1 / (1 - self._rate))

    def _dropped(self, values: Tensor) -> Tensor:
        shape = values.shape[1:]
        columns = torch.arange(prod(shape), device=values.device)
        of_columns = splitmix64(columns + (self._layer << 40)).int().view(shape)
        if self._from_the_end:
            of_columns = of_columns.flip(0)
        bits = _mixed(self.samples.keys.view(-1, *(1 for _ in shape)) ^ of_columns)
        return bits < round(self._rate * 2**31)


def _mixed(bits: Tensor) -> Tensor:
    """Hashes int32 numbers to 31 bits: shifts that repeat the sign leave it 0."""
    # Not to 64 bits, which a processor cannot multiply as vectors: that takes three times as long, and longer than
    # torch's dropout, which takes twice as long as this.
    for factor in FACTORS:
        bits = bits * factor
        bits = bits ^ (bits >> 15)
    return bits
