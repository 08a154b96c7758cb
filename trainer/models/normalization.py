"""Normalization of hidden layers: over the global batch, whatever number of ranks has its samples, or over columns."""

import torch
from torch import Tensor, nn

from trainer.models.step_samples import StepSamples

EPSILON, MOMENTUM = 1e-5, 0.1  # as in torch


# Torch's SyncBatchNorm needs a GPU, and counts padding.
class BatchNorm(nn.Module):
    """Scales each column to a mean of 0 and a variance of 1 over the samples of the global batch (arXiv:1502.03167).

    Outside of training by running means of both, which are buffers, so that checkpoints have them. Samples of weight 0
    do not count. A learned factor and a learned summand for each column follow.

    Args:
        columns: Number of columns, `C`.
        samples: The samples of the model.
        device: Device of the parameters.
    """

    def __init__(self, columns: int, samples: StepSamples, device: torch.device) -> None:
        super().__init__()
        self.samples = samples
        samples.count()
        self.weight = nn.Parameter(torch.ones(columns, device=device))
        self.bias = nn.Parameter(torch.zeros(columns, device=device))
        self.register_buffer("running_mean", torch.zeros(columns, device=device))
        self.register_buffer("running_variance", torch.ones(columns, device=device))

    def forward(self, values: Tensor) -> Tensor:
        """Returns values of the same shape, `[B, C]`."""
        mean, variance = (
            self._statistics(values.float()) if self.training else (self.running_mean, self.running_variance)
        )
        scaled = (values.float() - mean) * torch.rsqrt(variance + EPSILON)
        return (scaled * self.weight + self.bias).to(values.dtype)

    def _statistics(self, values: Tensor) -> tuple[Tensor, Tensor]:
        samples, counted = self.samples, self.samples.counted[:, None]
        number = samples.total.clamp(min=1)
        mean = samples.sum_over_ranks((values * counted).sum(dim=0)) / number
        # About the mean, though that takes a second exchange: a difference of large sums would lose all digits.
        squares = samples.sum_over_ranks(((values - mean).square() * counted).sum(dim=0))
        if torch.is_grad_enabled():
            self._remember(mean.detach(), squares.detach() / (number - 1).clamp(min=1))
        return mean, squares / number

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        for running, value in ((self.running_mean, mean), (self.running_variance, variance)):
            running.lerp_(value, MOMENTUM)


class LayerNorm(nn.LayerNorm):
    """Scales the columns of each sample to a mean of 0 and a variance of 1: what `model.normalization` asks for."""
