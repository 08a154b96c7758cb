"""Torch's random numbers, of which nothing is saved: they follow from the seed, the step and the rank."""

import numpy as np
import torch


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seeds torch's generators, before a step, for what a model draws in it, such as masks of dropout.

    A resumed run then draws the same as one that was never stopped, whatever was drawn between the steps.

    Args:
        seed: The seed of the run.
        step: The step.
        rank: This rank, whose samples get other numbers than those of other ranks.
        device: Where the model is.
    """
    (mixed,) = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64).tolist()
    # Not torch.manual_seed, which without a GPU formats a traceback each time, for the day that there is one.
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":  # also what recorded kernels draw that are replayed
        torch.cuda.manual_seed(mixed)
