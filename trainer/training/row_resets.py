"""Resets rows of sharded tables to initial values, for ids that get a row which belonged to another id."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.state_dict import State, is_table, table_of
from trainer.config.optimizer import OptimizerConfig
from trainer.core.distributed import placed_shards
from trainer.models.table_init import InitOf, initial_rows
from trainer.optim.optimizers import ACCUMULATORS


@dataclass(frozen=True)
class _LocalShard:
    """A local shard of a table, of the table's average, or of the table's optimizer state.

    Attributes:
        name: Name of the tensor in checkpoints.
        shard: The shard.
        first: The first row of the table in the shard.
        column: The first column of the table in the shard.
        size: The size of the whole table.
    """

    name: str
    shard: Tensor
    first: int
    column: int
    size: torch.Size


class RowResets:
    """Gives rows of a sharded model new initial values, as if the rows had never been trained.

    Args:
        tensors: Returns weights, optimizer state and averages as views, by their names in checkpoints.
        config: The optimizers' configuration.
        seed: Seed of the initial values.
        init_of: Returns the distribution of a table's.
    """

    def __init__(self, tensors: Callable[[], State], config: OptimizerConfig, seed: int, init_of: InitOf) -> None:
        self._tensors, self._config, self._seed, self._init_of = tensors, config, seed, init_of
        self._steps: Tensor | None = None
        self._parts: dict[str, list[_LocalShard]] = {}

    @torch.no_grad()
    def __call__(self, table: str, rows: Tensor, step: int) -> None:
        """Resets rows `[N]` of a table. The initial values depend on seed, table, row and step."""
        if not self._parts:  # made at the first reset, as few runs ever reset a row
            self._find()
        for part in self._parts.get(table, ()):  # empty on a rank without a shard of the table
            local = rows[(rows >= part.first) & (rows < part.first + len(part.shard))].to(part.shard.device)
            if len(local):
                part.shard[local - part.first] = self._values(part, local, table, step)

    def _find(self) -> None:
        tensors = self._tensors()
        self._steps = tensors.get("ema_steps")
        sizes = {table_of(name): value.size() for name, value in tensors.items() if is_table(name)}
        parts = defaultdict(list)
        for name, value in tensors.items():
            if is_table(name) or name.startswith(("table.", "ema_touched.")):
                size = sizes[table_of(name)]
                for shard, offsets in placed_shards(value):
                    # Row-wise state of a table with column shards has an entry for each row in each column shard.
                    part = _LocalShard(name, shard, offsets[0] % size[0], (offsets[1:] or [0])[0], size)
                    parts[table_of(name)].append(part)
        self._parts = dict(parts)

    def _values(self, part: _LocalShard, rows: Tensor, table: str, step: int) -> Tensor:
        if is_table(part.name):  # also true of the table's average, which starts at the weights
            columns = torch.arange(part.column, part.column + part.shard.shape[1], device=rows.device)
            values = initial_rows(rows, columns, part.size, table, self._seed, step, self._init_of(table))
            return values.to(part.shard.dtype)
        start = 0.0
        if part.name.startswith("ema_touched."):
            assert self._steps is not None
            start = float(self._steps)
        elif part.name.rpartition(".")[2] in ACCUMULATORS:
            start = self._config.of_table(table).initial_accumulator or 0.0
        return torch.full((), start, dtype=part.shard.dtype, device=rows.device)
