"""Batch normalization of known values, on any number of ranks."""

from collections.abc import Iterator
from pathlib import Path

import torch
from ranks import run_on_ranks

from trainer.core.distributed import process_group
from trainer.models.normalization import BatchNorm
from trainer.models.step_samples import StepSamples

ROWS, COLUMNS, STEPS = 24, 5, 3
COUNTED = [*range(20), 22]


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields values `[ROWS, COLUMNS]` far from zero, with a factor for the loss of each."""
    random = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        yield 50 + torch.randn(ROWS, COLUMNS, generator=random), torch.randn(ROWS, COLUMNS, generator=random)


def normalized(rank: int = 0, world_size: int = 1) -> list[torch.Tensor]:
    """Returns outputs and gradients of a rank's samples in each step, then gradients of weights and running means."""
    samples = StepSamples()
    norm = BatchNorm(COLUMNS, samples, torch.device("cpu"))
    weights = torch.zeros(ROWS).index_fill(0, torch.tensor(COUNTED), 0.5)
    here, found = slice(rank * ROWS // world_size, (rank + 1) * ROWS // world_size), []
    for step, (values, factors) in enumerate(batches()):
        values = values[here].requires_grad_()
        samples.begin(0, step, torch.arange(len(weights))[here], weights[here], world_size)
        out = norm(values)
        (out * factors[here] * (weights[here] > 0)[:, None]).sum().backward()
        found += [out.detach(), values.grad]
    return [*found, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_variance]


def on_ranks(ranks: int, folder: Path) -> None:
    """Every rank writes what it finds into a file."""
    run_on_ranks(ranks, _rank, folder)


def _rank(folder: Path) -> None:
    with process_group() as context:
        torch.save(normalized(context.rank, context.world_size), folder / f"{context.rank}.pt")
