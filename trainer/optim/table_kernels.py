"""The kernel that looks up embeddings and updates tables inside backward: FBGEMM's, with its gaps on a CPU filled."""

from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType as OptimType
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    DenseTableBatchedEmbeddingBagsCodegen,
    SplitTableBatchedEmbeddingBagsCodegen,
    WeightDecayMode,
)
from torch import Tensor, nn
from torchrec.distributed import batched_embedding_kernel
from torchrec.distributed.utils import optimizer_type_to_emb_opt_type

from trainer.config.optimizer import SparseOptimizerConfig
from trainer.optim.table_optimizers import TABLE_OPTIMIZERS
from trainer.optim.table_updates import Update, UpdateOptions, adam, lamb, lars_sgd, rowwise_adagrad, sgd


@dataclass(frozen=True)
class PlainOptimizer:
    """A table optimizer in plain tensor operations.

    Attributes:
        update: Returns the new values of touched rows.
        slots: Its state as in checkpoints, each with its dimensions; row-wise state has 1. TorchRec calls the first
            momentum1.
    """

    update: Update
    slots: dict[str, int]

    def initial_state(self, shape: tuple[int, ...]) -> dict[str, Tensor]:
        """Returns the state of a table or shard `[rows, columns]` before its first step."""
        return {_Slot(slot): torch.zeros(shape[:dimensions]) for slot, dimensions in self.slots.items()}


PLAIN = {
    OptimType.EXACT_SGD: PlainOptimizer(sgd, {}),
    OptimType.EXACT_ROWWISE_ADAGRAD: PlainOptimizer(rowwise_adagrad, {"sum": 1}),
    OptimType.ADAM: PlainOptimizer(adam, {"exp_avg": 2, "exp_avg_sq": 2}),
    OptimType.PARTIAL_ROWWISE_ADAM: PlainOptimizer(adam, {"exp_avg": 2, "exp_avg_sq": 1}),
    OptimType.LAMB: PlainOptimizer(lamb, {"exp_avg": 2, "exp_avg_sq": 2}),
    OptimType.PARTIAL_ROWWISE_LAMB: PlainOptimizer(lamb, {"exp_avg": 2, "exp_avg_sq": 1}),
    OptimType.LARS_SGD: PlainOptimizer(lars_sgd, {"momentum_buffer": 2}),
}
# Gradients of tables that are updated together. 26 tables of 16 columns take 20 ms of a step of 8,192 samples in lots
# of half a MiB, 14 in lots of 2, and 12 in lots of 8, which take memory that no plan counts.
TOGETHER_BYTES, FLOAT_BYTES = 2 * 2**20, 4
MOST_ROWS = 2**31  # of tables that are numbered together, as a row and a place are sorted as one number of 64 bits
COUNTING = (OptimType.ADAM, OptimType.PARTIAL_ROWWISE_ADAM, OptimType.LAMB, OptimType.PARTIAL_ROWWISE_LAMB)
Spec = tuple[int, int, EmbeddingLocation, ComputeDevice]


class TableKernel(SplitTableBatchedEmbeddingBagsCodegen):
    """FBGEMM's kernel of several tables, plus the optimizers and options that FBGEMM lacks on a CPU.

    On a GPU, FBGEMM does everything. On a CPU, it does the lookups, and the updates of SGD and Adagrad.

    Args:
        embedding_specs: Rows, columns, location and device of every table or shard.
        optimizer: The optimizer.
        options: FBGEMM's other options.

    Attributes:
        counts_steps: Whether its updates depend on the number of steps taken.
    """

    def __init__(
        self, embedding_specs: list[Spec], *, optimizer: OptimType = OptimType.EXACT_SGD, **options: Any
    ) -> None:
        on_cpu = embedding_specs[0][3] == ComputeDevice.CPU
        plain = PLAIN[optimizer] if on_cpu and not _is_native(optimizer, options) else None
        # SGD has no state that FBGEMM would allocate.
        super().__init__(embedding_specs, optimizer=OptimType.EXACT_SGD if plain else optimizer, **options)
        self._plain, self._is_empty = plain, on_cpu and not any(rows for rows, *_ in embedding_specs)
        self.counts_steps = optimizer in COUNTING
        self._latest_options: UpdateOptions | None = None
        features = [self.feature_table_map.count(table) for table in range(len(embedding_specs))]
        self._features = [range(*ends) for ends in pairwise(accumulate(features, initial=0))]
        # Where the columns of each feature begin, and those of the last one end.
        self._columns = [*accumulate((self.dims[table] for table in self.feature_table_map), initial=0)]
        # Tables of equal columns lie behind one another, and are updated together where that is faster.
        rows, columns = [spec[0] for spec in embedding_specs], {spec[1] for spec in embedding_specs}
        is_joined = plain and len(columns) == 1 and sum(rows) < MOST_ROWS
        self._joined = plain.initial_state((sum(rows), *columns)) if plain and is_joined else None
        self._limit = sum(rows) if self._joined else max(rows, default=0)
        first_rows = [first if self._joined else 0 for first in accumulate(rows, initial=0)]
        self._first_rows = torch.tensor([first_rows[table] for table in self.feature_table_map])
        if self._joined:
            parts = {slot: value.split(rows) for slot, value in self._joined.items()}
            self._states = [{slot: part[table] for slot, part in parts.items()} for table in range(len(rows))]
        else:
            self._states = [plain.initial_state(spec[:2]) for spec in embedding_specs] if plain else []

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        feature_requires_grad: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Returns pooled embeddings, `[B, columns of all features]`, or embeddings of every id, `[N, columns]`."""
        if self._is_empty:  # FBGEMM would take the tables for ones on a GPU; all ids belong to rows of other ranks
            none = self._none(indices, offsets)
            return _UpdatedInBackward.apply(self.placeholder_autograd_tensor, none, lambda gradient: None)
        no_gradients = _without_gradients(per_sample_weights, len(self.feature_table_map))
        if self._plain is None:
            return super().forward(indices, offsets, per_sample_weights, no_gradients, *args, **kwargs)
        is_pooled = self.pooling_mode != PoolingMode.NONE
        lookup = _Lookup(indices, offsets, per_sample_weights, self._first_rows, self._limit, is_pooled)
        with torch.no_grad():
            if self._joined and lookup.is_simple:  # FBGEMM gives the same, but its calls take longer than a small batch
                rows = lookup.rows(range(len(self.feature_table_map)))
                embeddings = self._weights.index_select(0, rows.view(-1)).float().view(len(rows), -1)
            else:
                embeddings = super().forward(indices, offsets, per_sample_weights, no_gradients, *args, **kwargs)
        update = partial(self._update, self._plain.update, lookup)
        return _UpdatedInBackward.apply(self.placeholder_autograd_tensor, embeddings, update)

    @property
    def _weights(self) -> Tensor:
        """The weights of joined tables, `[rows of all, columns]`."""
        host: Any = self.weights_host
        return host.detach().view(-1, self.dims[0])

    def _none(self, indices: Tensor, offsets: Tensor) -> Tensor:
        if self.pooling_mode == PoolingMode.NONE:
            return torch.zeros(len(indices), self.dims[0])
        bags = (len(offsets) - 1) // len(self.feature_table_map)
        return torch.zeros(bags, sum(self.dims[table] for table in self.feature_table_map))

    def get_optimizer_state(self) -> list[dict[str, Tensor]]:
        """Returns the optimizer's state by slot for every table, as views."""
        if self._plain:
            return self._states
        if self.optimizer == OptimType.LARS_SGD:  # which FBGEMM does not implement
            return [{"momentum_buffer": state[0]} for state in self.split_optimizer_states()]
        return [{_Slot(slot): value for slot, value in state.items()} for state in super().get_optimizer_state()]

    def set_steps_taken(self, steps: int) -> None:
        """Sets the number of steps taken, which FBGEMM otherwise takes to be the number of its forward passes."""
        self.iter.fill_(steps)
        self.iter_cpu.fill_(steps)

    @torch.no_grad()
    def _update(self, update: Update, lookup: "_Lookup", gradient: Tensor) -> None:
        """Updates all touched rows from the gradient of the embeddings."""
        if not lookup.starts[-1]:
            return
        gradient = gradient.float().contiguous()
        if self.pooling_mode == PoolingMode.MEAN and not lookup.is_simple:
            widths = torch.tensor(self._columns).diff()
            gradient = gradient / lookup.lengths.t().clamp(min=1).repeat_interleave(widths, dim=1)
        options = self._options()
        if self._joined:
            weights, states = [self._weights] * len(self.dims), [self._joined] * len(self.dims)
        else:
            weights, states = self.split_embedding_weights(), self._states
        for tables in self._together(lookup):
            features = range(self._features[tables[0]].start, self._features[tables[-1]].stop)
            gradients, places = self._gradients(gradient, lookup, features)
            rows, summed = lookup.sum_by_row(features, gradients, places)
            of_rows, state = weights[tables[0]], states[tables[0]]
            touched = {slot: value.index_select(0, rows) for slot, value in state.items()}
            updated = update(of_rows.index_select(0, rows).float(), summed, touched, options)
            of_rows.index_copy_(0, rows, updated.to(of_rows.dtype))
            for slot, value in touched.items():
                state[slot].index_copy_(0, rows, value)

    def _together(self, lookup: "_Lookup") -> list[list[int]]:
        """Returns the tables that are updated together: each by itself, or several with little to update."""
        found: list[list[int]] = []
        room = 0
        for table, features in enumerate(self._features):
            ids = lookup.starts[features.stop] - lookup.starts[features.start]
            if not ids:
                continue
            size = ids * self.dims[table] * FLOAT_BYTES
            if self._joined and found and size <= room:
                found[-1].append(table)
            else:
                found.append([table])
                room = TOGETHER_BYTES
            room -= size
        return found

    def _gradients(self, gradient: Tensor, lookup: "_Lookup", features: range) -> tuple[Tensor, Tensor | None]:
        """Returns gradients `[G, D]`, and which of them each id of some features has; None for one after the other."""
        columns = self._columns[features.start + 1] - self._columns[features.start]
        if self.pooling_mode == PoolingMode.NONE:
            return gradient[lookup.here(features)], None
        if self._joined:  # without a copy, those of all features
            return gradient.view(-1, columns), lookup.places(features, range(len(self.feature_table_map)))
        of_table = gradient[:, self._columns[features.start] : self._columns[features.stop]].reshape(-1, columns)
        return of_table, lookup.places(features, features)

    def _options(self) -> UpdateOptions:
        # Kept while they stay as they are, as making them takes 25 us of a step of 1.9 ms.
        rate, step = self.get_learning_rate(), int(self.iter_cpu.item()) + 1 if self.counts_steps else 0
        if self._latest_options is None or (self._latest_options.lr, self._latest_options.step) != (rate, step):
            given = self.optimizer_args
            self._latest_options = UpdateOptions(
                lr=rate,
                step=step,
                eps=given.eps,
                beta1=given.beta1,
                beta2=given.beta2,
                momentum=given.momentum,
                eta=given.eta,
                weight_decay=given.weight_decay,
                l2=given.weight_decay_mode == WeightDecayMode.L2.value,
            )
        return self._latest_options


class _Lookup:
    """A lookup of several features, one after the other.

    Args:
        indices: The ids of all features, `[N]`.
        offsets: Where the bags of all features begin and the last one ends.
        weights: The weights of the ids, `[N]`, if they have some.
        first_rows: The first row of each feature's table, `[F]`.
        limit: All rows are below it.
        is_pooled: Whether there is an embedding for each bag, and not for each id.

    Attributes:
        starts: Where the ids of each feature begin, and those of the last one end.
        is_simple: Whether each embedding is a row as it is: each bag has one id, without a weight.
    """

    def __init__(
        self,
        indices: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        first_rows: Tensor,
        limit: int,
        is_pooled: bool,
    ) -> None:
        self._indices, self._offsets, self._weights = indices, offsets, weights
        self._first_rows, self._limit = first_rows, limit
        self._bags = (len(offsets) - 1) // len(first_rows)
        self._numbers = _numbers(len(offsets), offsets.dtype)
        self.is_simple = is_pooled and weights is None and torch.equal(offsets, self._numbers)
        self.starts = [*range(0, len(offsets), self._bags)] if self.is_simple else offsets[:: self._bags].tolist()

    @cached_property
    def lengths(self) -> Tensor:
        """The number of ids of each bag, `[F, B]`."""
        return self._offsets.diff().view(-1, self._bags)

    def here(self, features: range) -> slice:
        """Returns where the ids of some features are."""
        return slice(self.starts[features.start], self.starts[features.stop])

    def places(self, features: range, among: range) -> Tensor | None:
        """Returns the places of these features' bags among bags sample by sample, `[N]`; None for 0, 1 and so on."""
        if self.is_simple and features == among:
            return None
        numbers = self._numbers[: self._bags * len(among)].view(self._bags, -1)
        places = numbers[:, features.start - among.start : features.stop - among.start]
        if self.is_simple:
            return places.reshape(-1)
        return places.t().reshape(-1).repeat_interleave(self.lengths[features.start : features.stop].reshape(-1))

    @cached_property
    def _simple_rows(self) -> Tensor:
        rows = torch.empty(self._bags, len(self._first_rows), dtype=torch.int64)
        return torch.add(self._indices.view(-1, self._bags).t(), self._first_rows, out=rows)

    def rows(self, features: range) -> Tensor:
        """Returns the rows that ids of these features name: `[B, F]` if the lookup is simple, or `[N]`."""
        if self.is_simple:
            return self._simple_rows[:, features.start : features.stop]
        ends = pairwise(self.starts[features.start : features.stop + 1])
        ids = torch.tensor([stop - start for start, stop in ends])
        first_rows = self._first_rows[features.start : features.stop].repeat_interleave(ids)
        return first_rows.add_(self._indices[self.here(features)])

    def sum_by_row(self, features: range, gradients: Tensor, places: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the rows that ids of these features name, `[R]`, and the sum of their gradients, `[R, D]`.

        Args:
            features: The features.
            gradients: Gradients, `[G, D]`.
            places: Which of them each id has, in the order of `rows`; None if each has its own.
        """
        weights = None if self._weights is None else self._weights[self.here(features)]
        rows = self.rows(features).reshape(-1)
        order = torch.from_numpy(_stable_order(rows.numpy(), self._limit))
        rows, counts = torch.unique_consecutive(rows.index_select(0, order), return_counts=True)
        # A bag of gradients for each row, which torch sums four times as fast as index_add_ does.
        return rows, nn.functional.embedding_bag(
            order if places is None else places.index_select(0, order),
            gradients,
            counts.cumsum(0) - counts,
            mode="sum",
            per_sample_weights=None if weights is None else weights.index_select(0, order),
        )


@lru_cache(maxsize=4)
def _numbers(count: int, dtype: torch.dtype) -> Tensor:
    """Returns 0, 1 and so on, which batches of a size share. Never write to it."""
    return torch.arange(count, dtype=dtype)


def _stable_order(rows: np.ndarray, limit: int) -> np.ndarray:
    """Returns the order of rows below `limit`, at most 2^32; equal ones keep the order that they have."""
    # NumPy sorts numbers of 16 bits by radix. On an AMD EPYC 3,072 rows take 12 us where torch.sort takes 40, and NumPy
    # 57 for whole rows with their places in their lower halves; 213,000 rows take 2.3 ms where those take 1.8 and 9.
    order = np.argsort(rows.astype(np.uint16), kind="stable")
    if limit <= 1 << 16:
        return order
    return order[np.argsort((rows >> 16)[order].astype(np.uint16), kind="stable")]


class _Slot(str):
    """The name of a slot that TorchRec takes for row-wise state.

    TorchRec compares the name with momentum1 before it takes a state of one value for the state of a whole table. A
    rank with a shard of one row would otherwise lay out the state differently from the other ranks.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def __ne__(self, other: object) -> bool:
        return other != "momentum1" and str.__ne__(self, other)


class _UpdatedInBackward(torch.autograd.Function):
    """Passes pooled embeddings on, and calls an update with their gradient.

    The first argument of `apply` requires a gradient, so that the result does.
    """

    @staticmethod
    def forward(ctx: Any, placeholder: Tensor, pooled: Tensor, update: Any) -> Tensor:
        ctx.update = update
        return pooled.view_as(pooled)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.update(*gradients)
        return None, None, None


def _is_native(optimizer: OptimType, options: dict[str, Any]) -> bool:
    """Returns whether a CPU updates by FBGEMM's own kernel."""
    if optimizer == OptimType.EXACT_SGD:  # it rounds a row of half precision once for every lookup of it
        return options.get("weights_precision", SparseType.FP32) == SparseType.FP32
    # FBGEMM has row-wise Adagrad, too, but not its weight decay, and takes 53 ms for 26 tables of 16 columns and 8,192
    # samples on two cores, where plain operations take 14.
    return optimizer not in PLAIN


def has_plain_update(settings: SparseOptimizerConfig, precision: str) -> bool:
    """Returns whether a table of these settings and precision is updated in plain tensor operations on a CPU."""
    optimizer = optimizer_type_to_emb_opt_type(TABLE_OPTIMIZERS[settings.name].fused)
    assert optimizer is not None
    options = {"weights_precision": SparseType(precision), "weight_decay": settings.weight_decay}
    return not _is_native(optimizer, options)


class ReplicatedKernel(DenseTableBatchedEmbeddingBagsCodegen):
    """FBGEMM's kernel of replicated tables, without its gap: on a CPU, it pools sequences."""

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        feature_requires_grad: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Returns pooled embeddings, `[B, columns of all features]`, or embeddings of every id, `[N, columns]`."""
        if self.pooling_mode == PoolingMode.NONE:
            return self._of_every_id(indices, offsets)
        no_gradients = _without_gradients(per_sample_weights, len(self.D_offsets) - 1)
        return super().forward(indices, offsets, per_sample_weights, no_gradients, *args, **kwargs)

    def _of_every_id(self, indices: Tensor, offsets: Tensor) -> Tensor:
        features = len(self.weights_offsets)
        ids = offsets[:: (len(offsets) - 1) // features].diff()  # of each feature
        first_rows = self.weights_offsets // self.max_D  # tables of sequences have equal columns, one behind the other
        rows = indices + first_rows.repeat_interleave(ids, output_size=len(indices))
        # Not index_select, whose gradient a GPU sums in any order.
        return nn.functional.embedding(rows, self.weights.view(-1, self.max_D))


def _without_gradients(weights: Tensor | None, features: int) -> Tensor | None:
    """Returns FBGEMM's `feature_requires_grad`, which leaves out the gradients of the weights of ids."""
    # They would take three quarters of backward.
    return None if weights is None else torch.zeros(features, dtype=torch.int32, device=weights.device)


def lookup_modules(model: nn.Module) -> list[Any]:
    """Returns TorchRec's modules that look up this rank's shards and replicated tables in a sharded model."""
    # They are not submodules; DDP wraps the modules of replicated tables on a GPU.
    lookups = [lookup for module in model.modules() for lookup in getattr(module, "_lookups", [])]
    return [found for lookup in lookups for found in getattr(lookup, "module", lookup)._emb_modules]


def table_kernels(model: nn.Module) -> list[TableKernel]:
    """Returns the kernels of this rank's shards in a sharded model; replicated tables have another."""
    kernels = [found.emb_module for found in lookup_modules(model)]
    return [kernel for kernel in kernels if isinstance(kernel, TableKernel)]


def replicated_weights(model: nn.Module) -> list[Tensor]:
    """Returns the weights of the kernels of replicated tables in a sharded model, each of one or more tables."""
    kernels = [found.emb_module for found in lookup_modules(model)]
    return [weight for kernel in kernels if isinstance(kernel, ReplicatedKernel) for weight in kernel.parameters()]


# TorchRec has no option for them.
batched_embedding_kernel.SplitTableBatchedEmbeddingBagsCodegen = TableKernel  # pyrefly: ignore
batched_embedding_kernel.DenseTableBatchedEmbeddingBagsCodegen = ReplicatedKernel  # pyrefly: ignore
