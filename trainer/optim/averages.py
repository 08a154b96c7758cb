"""Exponential moving averages (EMA) of the weights, beside the trained weights.

The average of a row whose weight `w` has not changed for `k` steps is exactly `w + (e - w) * decay ** k`, where `e` is
the average before them. So a row needs `e` and the step of its last lookup, and no work until the next lookup.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor, ShardedTensorMetadata
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.optimizer import AverageConfig
from trainer.core.errors import InputError
from trainer.models.embeddings import table_of_name, table_of_weight
from trainer.optim.table_kernels import lookup_modules

Offsets = tuple[int, ...]
CACHING = (EmbeddingComputeKernel.FUSED_UVM_CACHING.value, EmbeddingComputeKernel.KEY_VALUE.value)


# Not torch.optim.swa_utils.AveragedModel: it copies the whole module, sharded tables included.
class Averages:
    """Averages of a sharded model's weights: `e += (1 - decay) * (w - e)` after every step that is not skipped.

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


def check_kernels(plan: ShardingPlan) -> None:
    """Refuses averages of tables with a cache, because averaging cannot see the rows in the cache.

    Raises:
        InputError: The plan has such a table.
    """
    for tables in plan.plan.values():
        for name, table in tables.items():  # pyrefly: ignore[missing-attribute]
            if table.compute_kernel in CACHING:
                raise InputError(
                    f"optimizer.ema.tables is true, but table '{table_of_name(name)}' has the compute kernel "
                    f"'{table.compute_kernel}', whose cache hides its rows; leave it out, or set "
                    "planner.tables.NAME.compute_kernels to fused or fused_uvm"
                )


class TableAverages:
    """The averages of all tables that this rank holds shards of.

    Args:
        model: The sharded model.
        decay: Fraction of an average that a step keeps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._steps = torch.zeros((), dtype=torch.int64)
        self._weights = {name: value for name, value in model.state_dict().items() if table_of_weight(name)}
        replicated = {_table(name) for name, value in self._weights.items() if not isinstance(value, ShardedTensor)}
        self._shards: dict[str, dict[tuple[int, ...], _Shard]] = defaultdict(dict)
        for kernel in lookup_modules(model):
            shards = []
            for table, weight in zip(kernel._config.embedding_tables, kernel.split_embedding_weights(), strict=True):
                whole = table.name in replicated
                shard = (_Replica if whole else _Shard)(weight.detach(), decay)
                self._shards[table.name][(0, 0) if whole else tuple(table.local_metadata.shard_offsets)] = shard
                shards.append(shard)
            kernel.register_forward_pre_hook(self._noting([shards[t] for t in kernel._feature_table_map]))

    def _noting(self, shards_by_feature: list["_Shard"]) -> Any:
        def note(_: nn.Module, arguments: tuple[KeyedJaggedTensor]) -> None:
            if torch.is_grad_enabled():  # not in evaluations
                self._note(arguments[0], shards_by_feature)

        return note

    @torch.no_grad()
    def _note(self, features: KeyedJaggedTensor, shards_by_feature: list["_Shard"]) -> None:
        ids: dict[_Shard, list[Tensor]] = defaultdict(list)
        parts = torch.split(features.values(), features.length_per_key())
        for shard, part in zip(shards_by_feature, parts, strict=True):
            ids[shard].append(part)
        for shard, found in ids.items():
            shard.note(torch.cat(found), int(self._steps))

    def begin(self) -> None:
        """Starts again from the current weights."""
        self._steps.zero_()
        for shard in self._all():
            shard.begin()

    def update(self) -> None:
        """Moves the averages of the rows that were looked up towards their weights."""
        for shard in self._all():
            shard.update(int(self._steps))
        self._steps += 1

    def tensors(self) -> dict[str, Any]:
        """Returns the state by its names in checkpoints, as views.

        `ema.NAME` is a row's average when the row was last touched, `ema_touched.TABLE.steps` the number of steps
        averaged until then, `ema_steps` the number of all steps.
        """
        found: dict[str, Any] = {"ema_steps": self._steps}
        for name, weight in self._weights.items():
            shards = self._shards[_table(name)]
            averages = {offsets: shard.average for offsets, shard in shards.items()}
            touched = {offsets: shard.touched for offsets, shard in shards.items()}
            names = f"ema.{name}", f"ema_touched.{_table(name)}.steps"
            if isinstance(weight, ShardedTensor):
                both = sharded_like(weight, averages, torch.float32), rowwise_like(weight, touched, torch.int32)
            else:
                both = averages[0, 0], touched[0, 0]
            found |= zip(names, both, strict=True)
        return found

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replaces the weights by the averages inside the block; restores the weights bit for bit."""
        with ExitStack() as stack:
            for shard in self._all():
                stack.enter_context(replaced(shard.weight, shard.now(int(self._steps))))
            yield

    def _all(self) -> Iterator["_Shard"]:
        for shards in self._shards.values():
            yield from shards.values()


class _Shard:
    """The average of a local shard.

    Args:
        weight: The shard as it is trained, `[R, D]`.
        decay: Fraction of an average that a step keeps.

    Attributes:
        weight: As above.
        average: The average of each row as it was when it was last touched, `[R, D]`.
        touched: Steps averaged until each row was last touched, `[R]`.
    """

    def __init__(self, weight: Tensor, decay: float) -> None:
        self.weight, self._decay = weight, decay
        # In float32 whatever the table's precision: a step moves an average by less than float16 can hold.
        self.average = weight.to(torch.float32, copy=True)
        self.touched = torch.zeros(len(weight), dtype=torch.int32, device=weight.device)
        self._noted: tuple[Tensor, Tensor] | None = None

    def begin(self) -> None:
        self.average.copy_(self.weight)
        self.touched.zero_()

    def note(self, ids: Tensor, steps: int) -> None:
        """Keeps the values of the rows that a step is about to change."""
        rows = ids.unique().long()
        self._noted = rows, self.weight[rows]

    def update(self, steps: int) -> None:
        assert self._noted, "a step looks up every local shard"
        rows, before = self._noted
        average = self._idle(before, self.average[rows], steps - self.touched[rows])
        self.average.index_copy_(0, rows, average.lerp_(self.weight[rows].float(), 1 - self._decay))
        self.touched.index_fill_(0, rows, steps + 1)
        self._noted = None

    def now(self, steps: int) -> Tensor:
        """Returns the average of every row, `[R, D]`."""
        return self._idle(self.weight, self.average, steps - self.touched)

    def _idle(self, weight: Tensor, average: Tensor, steps: Tensor) -> Tensor:
        """Returns averages after `steps` steps without a change of the weights; after 0 steps, exactly `average`."""
        # In float64: an error of the decay grows with the number of steps.
        left = (self._decay ** steps.double()).float()
        return torch.lerp(weight.float(), average, left[:, None])


class _Replica(_Shard):
    """The average of a replicated table: any rank can change any row, so all rows are averaged at every step."""

    def note(self, ids: Tensor, steps: int) -> None:
        """Brings rows up to date whose averages were restored from a sharded table."""
        if (self.touched != steps).any():
            self.average.copy_(self.now(steps))
            self.touched.fill_(steps)

    def update(self, steps: int) -> None:
        self.average.lerp_(self.weight.float(), 1 - self._decay)
        self.touched.fill_(steps + 1)


def _table(name: str) -> str:
    return name.split(".")[-2]


@contextmanager
def replaced(weight: Tensor, by: Tensor) -> Iterator[None]:
    """Replaces the values of a weight inside the block."""
    trained = weight.clone()
    weight.copy_(by)
    del by  # all tables' averages together would take their memory a third time
    try:
        yield
    finally:
        weight.copy_(trained)


def sharded_like(table: ShardedTensor, shards: Mapping[Offsets, Tensor], dtype: torch.dtype) -> ShardedTensor:
    """Returns a tensor with a table's shape and shards, from its local shards by their offsets."""
    metadata = deepcopy(table.metadata())
    return _sharded(table, shards, metadata, _with_rows(metadata), dtype)


def rowwise_like(table: ShardedTensor, shards: Mapping[Offsets, Tensor], dtype: torch.dtype) -> ShardedTensor:
    """Returns a tensor with a value for each row of a table in each of its column shards, as TorchRec lays them out.

    Args:
        table: The table, `[R, D]`.
        shards: The local shards, by the offsets of the table's shards; the result is `[column shards * R]`.
        dtype: Their type, which a rank without shards cannot know.
    """
    metadata = deepcopy(table.metadata())
    parts = _with_rows(metadata)
    columns = sorted({part.shard_offsets[1] for part in parts.values()})
    for (row, column), part in parts.items():
        part.shard_offsets = [columns.index(column) * table.size(0) + row]
        part.shard_sizes = part.shard_sizes[:1]
    metadata.size = torch.Size([len(columns) * table.size(0)])
    return _sharded(table, shards, metadata, parts, dtype)


def _with_rows(metadata: ShardedTensorMetadata) -> dict[Offsets, ShardMetadata]:
    """Returns the shards that have rows, by their offsets; an empty shard begins where the next shard does."""
    return {tuple(part.shard_offsets): part for part in metadata.shards_metadata if 0 not in part.shard_sizes}


def _sharded(
    table: ShardedTensor,
    shards: Mapping[Offsets, Tensor],
    metadata: ShardedTensorMetadata,
    parts: dict[Offsets, ShardMetadata],
    dtype: torch.dtype,
) -> ShardedTensor:
    metadata.shards_metadata = [*parts.values()]
    metadata.tensor_properties.dtype, metadata.tensor_properties.requires_grad = dtype, False
    local = [Shard(shard, parts[offsets]) for offsets, shard in shards.items() if shard.numel()]
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        local, metadata, process_group=table._process_group
    )
