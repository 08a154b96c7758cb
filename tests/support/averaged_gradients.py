"""Ranks that average gradients of their own."""

from pathlib import Path

import torch
from ranks import run_on_ranks
from torch import Tensor

from trainer.core.distributed import process_group
from trainer.optim.gradients import TOGETHER_BYTES, GradientAverage

RANKS, STEPS = 3, 2
SHAPES = {"matrix": (3, 5), "large": (TOGETHER_BYTES // 4,), "unused": (7,), "unused, large": (TOGETHER_BYTES,)}
SHAPES |= {"on one rank": (2, 2), "double": (4,)}


def gradient(name: str, rank: int, step: int) -> Tensor | None:
    """Returns the gradient of a weight on a rank, None where the rank does not use it."""
    if name.startswith("unused") or (name == "on one rank" and rank != 1):
        return None
    random = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(SHAPES[name], generator=random, dtype=torch.float64 if name == "double" else torch.float32)


def average(folder: Path) -> None:
    """Every rank writes the gradients that it has after each step into files."""
    run_on_ranks(RANKS, _rank, folder)


def _rank(folder: Path) -> None:
    with process_group() as context:
        weights = {
            name: torch.zeros(shape, dtype=torch.float64 if name == "double" else torch.float32)
            for name, shape in SHAPES.items()
        }
        average_gradients = GradientAverage([*weights.values()], context.world_size)
        for step in range(STEPS):
            for name, weight in weights.items():
                weight.grad = gradient(name, context.rank, step)
            average_gradients()
            found = {name: weight.grad for name, weight in weights.items()}
            torch.save(found, folder / f"{context.rank}-{step}.pt")
