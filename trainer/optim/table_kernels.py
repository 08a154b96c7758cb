"""The kernel that looks up embeddings and updates tables inside backward: FBGEMM's, completed on a CPU."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

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

from trainer.config.table_optim import SparseOptimizerConfig
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
COUNTING = (OptimType.ADAM, OptimType.PARTIAL_ROWWISE_ADAM, OptimType.LAMB, OptimType.PARTIAL_ROWWISE_LAMB)
Spec = tuple[int, int, EmbeddingLocation, ComputeDevice]


class TableKernel(SplitTableBatchedEmbeddingBagsCodegen):
    """FBGEMM's kernel of several tables, with the optimizers and options that it lacks on a CPU.

    On a GPU, and on a CPU where FBGEMM has the optimizer, everything is FBGEMM's.

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
        with torch.no_grad():
            pooled = super().forward(indices, offsets, per_sample_weights, no_gradients, *args, **kwargs)
        update = partial(self._update, self._plain.update, self._indices, self._offsets, per_sample_weights)
        return _UpdatedInBackward.apply(self.placeholder_autograd_tensor, pooled, update)

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
    def _update(
        self, update: Update, indices: Tensor, offsets: Tensor, weights_of_ids: Tensor | None, gradient: Tensor
    ) -> None:
        """Updates all touched rows from the gradient of the embeddings."""
        looked_up = [*self._looked_up(indices, offsets, weights_of_ids, gradient.float())]
        options = self._options()
        for table, weights in enumerate(self.split_embedding_weights()):
            features = [feature for feature, owner in enumerate(self.feature_table_map) if owner == table]
            ids, gradients = (torch.cat(parts) for parts in zip(*(looked_up[one] for one in features), strict=True))
            rows, places = torch.unique(ids, return_inverse=True)
            summed = gradients.new_zeros(len(rows), weights.shape[1]).index_add_(0, places, gradients)
            state = {slot: value[rows] for slot, value in self._states[table].items()}
            weights[rows] = update(weights[rows].float(), summed, state, options).to(weights.dtype)
            for slot, value in state.items():
                self._states[table][slot][rows] = value

    def _looked_up(
        self, indices: Tensor, offsets: Tensor, weights: Tensor | None, gradient: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields for each feature the ids `[N]` and the gradient of each of them `[N, D]`."""
        if self.pooling_mode == PoolingMode.NONE:
            bounds = offsets[:: (len(offsets) - 1) // len(self.feature_table_map)].tolist()
            yield from ((indices[start:end].long(), gradient[start:end]) for start, end in pairwise(bounds))
            return
        bags = len(gradient)
        widths = [self.dims[table] for table in self.feature_table_map]
        for feature, of_bags in enumerate(gradient.split(widths, dim=1)):
            bounds = offsets[feature * bags : (feature + 1) * bags + 1]
            lengths = bounds.diff()
            if self.pooling_mode == PoolingMode.MEAN:
                of_bags = of_bags / lengths.clamp(min=1)[:, None]
            of_ids, here = of_bags.repeat_interleave(lengths, dim=0), slice(bounds[0], bounds[-1])
            yield indices[here].long(), of_ids if weights is None else of_ids * weights[here, None]

    def _options(self) -> UpdateOptions:
        given = self.optimizer_args
        return UpdateOptions(
            lr=self.get_learning_rate(),
            step=int(self.iter_cpu.item()) + 1,
            eps=given.eps,
            beta1=given.beta1,
            beta2=given.beta2,
            momentum=given.momentum,
            eta=given.eta,
            weight_decay=given.weight_decay,
            l2=given.weight_decay_mode == WeightDecayMode.L2.value,
        )


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
    """Returns whether FBGEMM has, on a CPU, an optimizer with its options."""
    if optimizer == OptimType.EXACT_SGD:  # it rounds a row of half precision once for every lookup of it
        return options.get("weights_precision", SparseType.FP32) == SparseType.FP32
    if optimizer == OptimType.EXACT_ROWWISE_ADAGRAD:  # it ignores weight decay, but for tables of several features
        return not options.get("weight_decay")
    return optimizer not in PLAIN


def has_plain_update(settings: SparseOptimizerConfig, precision: str) -> bool:
    """Returns whether a table of these settings and precision is updated in plain tensor operations on a CPU."""
    optimizer = optimizer_type_to_emb_opt_type(TABLE_OPTIMIZERS[settings.name].fused)
    assert optimizer is not None
    options = {"weights_precision": SparseType(precision), "weight_decay": settings.weight_decay}
    return not _is_native(optimizer, options)


class ReplicatedKernel(DenseTableBatchedEmbeddingBagsCodegen):
    """FBGEMM's kernel of replicated tables."""

    def forward(
        self,
        indices: Tensor,
        offsets: Tensor,
        per_sample_weights: Tensor | None = None,
        feature_requires_grad: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Returns pooled embeddings, `[B, columns of all features]`."""
        no_gradients = _without_gradients(per_sample_weights, len(self.D_offsets) - 1)
        return super().forward(indices, offsets, per_sample_weights, no_gradients, *args, **kwargs)


def _without_gradients(weights: Tensor | None, features: int) -> Tensor | None:
    """Returns FBGEMM's `feature_requires_grad` for weights of ids, whose gradients nobody needs."""
    # They would take three quarters of backward.
    return None if weights is None else torch.zeros(features, dtype=torch.int32, device=weights.device)


def lookup_modules(model: nn.Module) -> list[Any]:
    """Returns TorchRec's modules that look up this rank's shards and replicated tables in a sharded model."""
    # They are not submodules; DDP wraps the modules of replicated tables.
    lookups = [lookup for module in model.modules() for lookup in getattr(module, "_lookups", [])]
    return [found for lookup in lookups for found in getattr(lookup, "module", lookup)._emb_modules]


def table_kernels(model: nn.Module) -> list[TableKernel]:
    """Returns the kernels of this rank's shards in a sharded model; replicated tables have another."""
    kernels = [found.emb_module for found in lookup_modules(model)]
    return [kernel for kernel in kernels if isinstance(kernel, TableKernel)]


# TorchRec has no option for them.
batched_embedding_kernel.SplitTableBatchedEmbeddingBagsCodegen = TableKernel  # pyrefly: ignore
batched_embedding_kernel.DenseTableBatchedEmbeddingBagsCodegen = ReplicatedKernel  # pyrefly: ignore
