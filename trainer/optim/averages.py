"""Exponential moving averages (EMA) of the weights, beside the trained weights."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from trainer.config.optimizer import AverageConfig
from trainer.models.embeddings import table_of_weight
from trainer.optim.table_averages import TableAverages, replaced


# Not torch.optim.swa_utils.AveragedModel: it copies the whole module, sharded tables included.
class Averages:
    """Averages of a sharded model's weights: `e += (1 - decay) * (w - e)` after every step that was taken.

    Args:
        model: The sharded model.
        config: The decay, and whether tables are averaged.

    Attributes:
        evaluated: Whether evaluations use the averages.
    """

    def __init__(self, model: nn.Module, config: AverageConfig) -> None:
        assert config.decay is not None
        self._share = 1 - config.decay
        self._weights = {
            name: weight.detach() for name, weight in model.named_parameters() if table_of_weight(name) is None
        }
        self._averages = {name: weight.clone() for name, weight in self._weights.items()}
        self._tables = TableAverages(model, config.decay) if config.tables else None
        self.evaluated = config.evaluate

    def begin(self) -> None:
        """Starts again from the current weights."""
        for name, weight in self._weights.items():
            self._averages[name].copy_(weight)
        if self._tables:
            self._tables.begin()

    @torch.no_grad()
    def update(self) -> None:
        """Moves the averages towards the weights after a step."""
        torch._foreach_lerp_([*self._averages.values()], [*self._weights.values()], self._share)
        if self._tables:
            self._tables.update()

    def tensors(self) -> dict[str, Any]:
        """Returns the averages by their names in checkpoints, as views."""
        dense = {f"ema.{name}": average for name, average in self._averages.items()}
        return dense | (self._tables.tensors() if self._tables else {})

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replaces the weights by the averages inside the block; restores the weights bit for bit."""
        with ExitStack() as stack:
            for name, weight in self._weights.items():
                stack.enter_context(replaced(weight, self._averages[name]))
            if self._tables:
                stack.enter_context(self._tables.swapped_in())
            yield
