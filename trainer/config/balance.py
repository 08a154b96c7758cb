"""Configuration of samples that are dealt by their cost: to ranks, and to steps."""

from typing import Annotated

import pydantic

from trainer.core.section import MayChange, Section


class BalanceConfig(Section):
    """Which rank computes which samples of a step: those of its lanes, or samples of equal cost.

    A step has the same samples either way, and the same loss but for rounding, so that both keys may change on resume.
    """

    features: Annotated[list[str], MayChange] = []
    """Sparse features with lists whose lengths make the cost of a sample. Each rank then reads the samples of all ranks
    and keeps its own. Unset: a rank takes the samples of its lanes."""
    squares: Annotated[pydantic.NonNegativeFloat, MayChange] = 0.0
    """How much the square of a length costs beside the length itself, as attention's does: 0.01 for l + 0.01 l^2."""


class EvenStepsConfig(Section):
    """Which samples of a shuffle window make a step: the next ones, or samples that cost as much as any other step's.

    Both keys decide the order of samples, and may not change on resume.
    """

    features: list[str] = []
    """Sparse features with lists whose lengths make the cost of a sample. Unset: the samples that come next."""
    squares: pydantic.NonNegativeFloat = 0.0
    """How much the square of a length costs beside the length itself, as in data.balance."""
