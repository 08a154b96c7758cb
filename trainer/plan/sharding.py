"""Shards a model by a plan, and initializes its tables.

Begin at `shard`, at the end. The classes before it replace TorchRec's sharded tables and sharders where these are
wrong, depend on the plan, or waste time on small models. `sharders` puts them together.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext, KJTListSplitsAwaitable
from torchrec.distributed.embedding_types import BaseEmbeddingSharder, KJTList
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import (
    DataParallelWrapper,
    DefaultDataParallelWrapper,
    DistributedModelParallel,
)
from torchrec.distributed.sharding.dp_sharding import DpSparseFeaturesDist
from torchrec.distributed.sharding.tw_sharding import TwSparseFeaturesDist
from torchrec.distributed.types import (
    Awaitable,
    LazyAwaitable,
    LazyNoWait,
    ModuleSharder,
    NoWait,
    ParameterSharding,
    ShardingEnv,
    ShardingPlan,
)
from torchrec.modules.embedding_configs import PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from torchx_recsys.planner.hardware import GIB
from torchx_recsys.planner.tables import SHARDING_TYPES
from trainer.batches.batch import SingleIds, of_block
from trainer.config.plan import CommsConfig
from trainer.core.distributed import DistributedContext, limit_collectives
from trainer.core.errors import InputError
from trainer.models.embeddings import table_of_weight, table_shapes, value_bytes
from trainer.models.table_init import InitOf, initialize_tables
from trainer.plan.communication import codecs
from trainer.plan.sharding_plan import table_bytes

SENT_AT_ONCE_BYTES = 250 * 2**20
LARGEST = 3  # number of tables that a message names


class SingleIdsExchange:
    """Sends single ids to the ranks of their tables, in an exchange without numbers of ids.

    Args:
        group: The ranks.
        keys: The features, ordered by the ranks that have their tables.
        numbers: The number of features of each rank.
    """

    def __init__(self, group: dist.ProcessGroup, keys: Sequence[str], numbers: Sequence[int]) -> None:
        self._group, self._numbers = group, [*numbers]
        end = sum(numbers[: group.rank() + 1])
        self._keys = keys[end - numbers[group.rank()] : end]

    def __call__(self, ids: Tensor) -> "ArrivingIds":
        """Begins to send this rank's ids of the features, `[F, B]`, with NO_ID where there is none."""
        ranks, here = len(self._numbers), len(self._keys)
        arriving = ids.new_empty(ranks, here, ids.shape[1])
        come = ranks * [here]
        work = dist.all_to_all_single(arriving.flatten(0, 1), ids, come, self._numbers, self._group, async_op=True)
        assert work
        return ArrivingIds(work, arriving, self._keys)


class ArrivingIds(Awaitable[KeyedJaggedTensor]):
    """Waits for the ids of this rank's features, which all ranks send.

    Args:
        work: The exchange.
        arriving: The ids, `[ranks, F, B]`.
        keys: The features, `F` of them.
    """

    def __init__(self, work: dist.Work, arriving: Tensor, keys: Sequence[str]) -> None:
        super().__init__()
        self._work, self._arriving, self._keys = work, arriving, keys

    def _wait_impl(self) -> KeyedJaggedTensor:
        self._work.wait()
        ranks, features, samples = self._arriving.shape
        return of_block(self._arriving.transpose(0, 1).reshape(features, ranks * samples), self._keys)


class AveragedByStep:
    """Mix-in of sharded tables: on a CPU, gradients of replicated tables are left to GradientAverage.

    On a GPU TorchRec wraps each lookup of such tables in DistributedDataParallel.
    """

    def init_data_parallel(self) -> None:
        """Wraps lookups of replicated tables on a GPU."""
        if self._device != torch.device("cpu"):  # pyrefly: ignore[missing-attribute]
            super().init_data_parallel()  # pyrefly: ignore[missing-attribute]
            return
        for lookup in self._lookups:  # pyrefly: ignore[missing-attribute]
            vars(lookup)["module"] = lookup  # TorchRec expects DistributedDataParallel's attribute here


class PooledTables(AveragedByStep, ShardedEmbeddingBagCollection):
    """Sharded tables of pooled features; embeddings come in the same order under every plan.

    TorchRec returns embeddings in the order of the plan. A model that reads `values()` would then get its columns in
    another order on another number of ranks.

    Args:
        module: The unsharded tables.
        options: Other arguments of TorchRec's class.

    Attributes:
        features: The features, in the order of their embeddings.
        dimensions: The number of columns of each feature.
    """

    def __init__(self, module: EmbeddingBagCollection, **options: Any) -> None:
        super().__init__(module=module, **options)
        of_features = [(feature, table) for table in module.embedding_bag_configs() for feature in table.feature_names]
        self.features = [feature for feature, _ in of_features]
        self.dimensions = [table.embedding_dim for _, table in of_features]
        self._only_kernel: list[nn.Module] = []  # in a list, because torch would save a submodule a second time
        self._keys: list[list[str]] = []  # the features of each input distribution
        self._exchanges: list[SingleIdsExchange | None] = []

    def _create_input_dist(self, input_feature_names: list[str]) -> None:
        super()._create_input_dist(input_feature_names)
        # A single rank has all ids of whole tables already. They stay where they are, like ids of replicated tables.
        # TorchRec would exchange their number with itself and copy them: 0.3 of 3.8 ms.
        if self._env.world_size > 1:
            self._keys = [sharding.feature_names() for sharding in self._embedding_shardings]
            self._exchanges = [
                SingleIdsExchange(one._dist._pg, keys, one._dist._splits)
                if isinstance(one, TwSparseFeaturesDist)
                else None
                for one, keys in zip(self._input_dists, self._keys, strict=True)
            ]
            return
        # The shortcut needs whole tables. With column shards, the kernel returns the columns of a shard for all
        # features before those of the next shard.
        are_whole = self._uncombined_embedding_names == self._embedding_names and all(
            isinstance(one, TwSparseFeaturesDist | DpSparseFeaturesDist) for one in self._input_dists
        )
        self._input_dists = [
            DpSparseFeaturesDist() if isinstance(one, TwSparseFeaturesDist) else one for one in self._input_dists
        ]
        kernels = [kernel for lookup in self._lookups for kernel in getattr(lookup, "_emb_modules", [])]
        if are_whole and len(self._lookups) == len(kernels) == 1 and not self._has_mean_pooling_callback:
            self._only_kernel = kernels

    def forward(self, features: KeyedJaggedTensor) -> LazyAwaitable[KeyedTensor]:  # pyrefly: ignore[bad-override]
        """Looks up a batch without a pipeline."""
        if not self._only_kernel:
            return super().forward(features)
        # The ids stay where they are, so none of TorchRec's objects for an exchange is made.
        return self.compute_and_output_dist(None, [self._in_order_of_tables(features)])

    def input_dist(self, ctx: Any, features: KeyedJaggedTensor) -> Awaitable[Awaitable[KJTList]]:
        """Begins to send ids to the ranks that have their rows."""
        if any(self._exchanges) and isinstance(features, SingleIds) and not self._has_mean_pooling_callback:
            return self._send_single(ctx, features)
        if not self._only_kernel:
            return super().input_dist(ctx, features)
        return KJTListSplitsAwaitable([NoWait(NoWait(self._in_order_of_tables(features)))], ctx)

    def _in_order_of_tables(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        if not self._has_features_permute:
            return features
        return features.permute(self._features_order, self._features_order_tensor)  # pyrefly: ignore[bad-argument-type]

    def _send_single(self, ctx: Any, features: SingleIds) -> KJTListSplitsAwaitable[Any]:
        """Begins to send ids: whole tables and column shards in one exchange each, other tables as TorchRec does."""
        ids = features.block()
        if self._has_features_permute:
            ids = ids.index_select(0, self._features_order_tensor)  # pyrefly: ignore[bad-argument-type]
        ctx.variable_batch_per_feature, ctx.inverse_indices = False, None
        awaitables, parts = [], ids.split(self._feature_splits)
        for exchange, input_dist, keys, part in zip(self._exchanges, self._input_dists, self._keys, parts, strict=True):
            awaitables.append(NoWait(exchange(part)) if exchange else input_dist(of_block(part, keys)))
            samples = len(part) * [part.shape[1]]
            ctx.sharding_contexts.append(EmbeddingShardingContext(batch_size_per_feature_pre_a2a=samples))
        return KJTListSplitsAwaitable(awaitables, ctx, self._module_fqn, self._sharding_types)

    def compute_and_output_dist(self, ctx: Any, input: Any) -> LazyAwaitable[KeyedTensor]:
        """Looks up a batch; the only way to embeddings, pipelined or not."""
        if self._only_kernel:
            embeddings = self._only_kernel[0](input[0])
            awaitable = LazyNoWait(KeyedTensor(self._embedding_names, self._embedding_dims, embeddings))
        else:
            awaitable = super().compute_and_output_dist(ctx, input)
        if self._embedding_names != self.features:
            awaitable.callbacks.append(self._ordered)
        return awaitable

    def _ordered(self, embeddings: KeyedTensor) -> KeyedTensor:
        by_feature = embeddings.to_dict()
        values = [by_feature[feature] for feature in self.features]
        return KeyedTensor(self.features, [one.shape[1] for one in values], torch.cat(values, dim=1))


class SequenceTables(AveragedByStep, ShardedEmbeddingCollection):
    """Sharded tables of sequences; embeddings come in the same order under every plan.

    Args:
        module: The unsharded tables.
        options: Other arguments of TorchRec's class.
    """

    def __init__(self, module: EmbeddingCollection, **options: Any) -> None:
        super().__init__(module=module, **options)
        self._order = [feature for table in module.embedding_configs() for feature in table.feature_names]

    def compute_and_output_dist(self, ctx: Any, input: Any) -> LazyAwaitable[dict[str, JaggedTensor]]:
        """Looks up a batch; the only way to embeddings, pipelined or not."""
        awaitable = super().compute_and_output_dist(ctx, input)
        awaitable.callbacks.append(lambda embeddings: {feature: embeddings[feature] for feature in self._order})
        return awaitable


class Sharder(EmbeddingBagCollectionSharder):
    """Shards pooled tables with any sharding type on any device; TorchRec's sharder lacks row-wise types on a CPU.

    Args:
        comms: Precision of the exchange between ranks.
        tables: The sharded class of pooled tables.
    """

    def __init__(
        self,
        comms: CommsConfig,
        tables: type[PooledTables] = PooledTables,
    ) -> None:
        super().__init__(qcomm_codecs_registry=codecs(comms))
        self._tables = tables

    def shard(
        self,
        module: EmbeddingBagCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedEmbeddingBagCollection:
        """Returns a sharded collection of tables."""
        tables = self._tables(**_arguments(self, module, params, env, device, module_fqn))
        _divide_row_wise_sums_only(tables, module)
        return tables

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """Returns all sharding types."""
        return list(SHARDING_TYPES)


def _divide_row_wise_sums_only(tables: ShardedEmbeddingBagCollection, module: EmbeddingBagCollection) -> None:
    # For row-wise tables with mean pooling, TorchRec sums rows and divides the result, except for features that it
    # lists as sums. It fails to list features of other sharding types: beside such a table their sums became means, and
    # their means were divided twice. Of 81 mixed plans of 4 tables 44 were wrong; with all features listed, none is.
    by_pooling = tables._pooling_type_to_rs_features
    row_wise = {feature for features in by_pooling.values() for feature in features}
    features = [feature for table in module.embedding_bag_configs() for feature in table.feature_names]
    by_pooling[PoolingType.SUM.value] += [feature for feature in features if feature not in row_wise]


class SequenceSharder(EmbeddingCollectionSharder):
    """Shards tables of sequences, for which TorchRec has fewer sharding types.

    Args:
        comms: Precision of the exchange between ranks.
        sequences: The sharded class of sequence tables.
    """

    def __init__(self, comms: CommsConfig, sequences: type[SequenceTables] = SequenceTables) -> None:
        super().__init__(qcomm_codecs_registry=codecs(comms))
        self._sequences = sequences

    def shard(
        self,
        module: EmbeddingCollection,
        params: dict[str, ParameterSharding],
        env: ShardingEnv,
        device: torch.device | None = None,
        module_fqn: str | None = None,
    ) -> ShardedEmbeddingCollection:
        """Returns a sharded collection of tables."""
        return self._sequences(**_arguments(self, module, params, env, device, module_fqn))


def _arguments(
    sharder: BaseEmbeddingSharder[Any],
    module: nn.Module,
    params: dict[str, ParameterSharding],
    env: ShardingEnv,
    device: torch.device | None,
    module_fqn: str | None,
) -> dict[str, Any]:
    return {
        "module": module,
        "table_name_to_parameter_sharding": params,
        "env": env,
        "fused_params": sharder.fused_params,
        "device": device,
        "qcomm_codecs_registry": sharder.qcomm_codecs_registry,
        "module_fqn": module_fqn,
    }


def sharders(
    comms: CommsConfig,
    tables: type[PooledTables] = PooledTables,
    sequences: type[SequenceTables] = SequenceTables,
) -> list[ModuleSharder[Any]]:
    """Returns the sharders of both kinds of tables; the arguments are theirs."""
    return [Sharder(comms, tables), SequenceSharder(comms, sequences)]  # pyrefly: ignore[bad-return]


def shard(
    model: nn.Module,
    sharders: list[ModuleSharder[Any]],
    plan: ShardingPlan,
    context: DistributedContext,
    seed: int,
    init_of: InitOf,
) -> DistributedModelParallel:
    """Shards a model: places the shards of every table by the plan, and sets their initial values.

    Args:
        model: The model.
        sharders: The sharders of its tables.
        plan: The placement of the tables.
        context: This process among the ranks.
        seed: Seed of the initial values.
        init_of: Returns the distribution of each table's.

    Raises:
        InputError: The memory does not suffice.
    """
    with allocating(table_shapes(model), value_bytes(model)):
        sharded = DistributedModelParallel(
            model,
            device=context.device,
            plan=plan,
            sharders=sharders,
            data_parallel_wrapper=_data_parallel(model, context),
        )
        limit_collectives(context)
        initialize_tables(sharded, seed, init_of)
    return sharded


def _data_parallel(model: nn.Module, context: DistributedContext) -> DataParallelWrapper:
    """Returns the wrapper that averages the gradients of the dense part over the ranks."""
    if context.world_size == 1 or context.device.type == "cpu":
        return Unwrapped()
    trains = [parameter.requires_grad for name, parameter in model.named_parameters() if table_of_weight(name) is None]
    # DDP refuses a module whose weights are all frozen.
    frozen = [] if any(trains) else [name for name, _ in model.named_parameters()]
    # find_unused_parameters keeps resumed runs exact. Without it, or with static_graph, DDP regroups its buckets after
    # the first step of a job. Other buckets sum gradients in another order, so a resumed run would round differently
    # from an uninterrupted run.
    return DefaultDataParallelWrapper(static_graph=False, find_unused_parameters=True, params_to_ignore=frozen)


class Unwrapped(DataParallelWrapper):
    """The wrapper without DDP: puts the dense part on the device, with rank 0's weights; GradientAverage averages."""

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Sends rank 0's dense weights to all ranks: the user's own model may have drawn other weights on each rank."""
        # Some modules are made on the CPU, such as TorchRec's cross network and layers of the user's own model.
        dmp._dmp_wrapped_module = dmp._dmp_wrapped_module.to(device)
        named = [*dmp.named_parameters(), *dmp.named_buffers()]
        dense = [value.detach() for name, value in named if table_of_weight(name) is None]
        if env.world_size > 1 and dense:
            assert env.process_group
            dist._broadcast_coalesced(env.process_group, dense, SENT_AT_ONCE_BYTES, 0)  # the way of DDP


@contextmanager
def allocating(tables: dict[str, tuple[int, int]], value_bytes: Mapping[str, int]) -> Iterator[None]:
    """Inside the block, an allocation that fails is reported with the names of the largest tables.

    Args:
        tables: Rows and columns of every table.
        value_bytes: Size of a value of each in bytes.

    Raises:
        InputError: The memory of the host or of a GPU does not suffice.
    """
    try:
        yield
    except RuntimeError as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not on_gpu and "can't allocate memory" not in str(error):
            raise
        sizes = {name: table_bytes(shape, value_bytes[name]) for name, shape in tables.items()}
        largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:LARGEST]
        named = ", ".join(f"'{name}' of {sizes[name] / GIB:,.1f} GiB" for name in largest)
        key = "planner.memory_gib" if on_gpu else "planner.host_memory_gib"
        raise InputError(
            f"the memory of this rank does not hold its part of the tables; the largest are {named}; "
            f"set {key} to what a rank really has, raise planner.reserve, or use more ranks"
        ) from error
