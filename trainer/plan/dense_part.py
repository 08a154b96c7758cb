"""Memory and work of the dense part of a model, measured in a training step on tensors without values.

The step runs on fake tensors on a CPU, whatever the cluster is: shapes are enough to count bytes and operations. Tables
are replaced by modules that return embeddings without a lookup.
"""

import logging
import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from torchx_recsys.planner.tables import DenseMemory, DensePart, DenseWork
from trainer.batches.batch import Batch
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.epoch_order import MIN_LANES
from trainer.models.builder import build_model_with_loss
from trainer.models.embeddings import table_of_weight
from trainer.models.sequence_model import PAIRS, PAIRS_ON_GPU, CountedGroups, count_groups
from trainer.models.step_samples import samples_of
from trainer.models.table_init import BLOCK_VALUES
from trainer.models.tasks import ModelWithLoss
from trainer.models.weighting import WEIGHTINGS
from trainer.optim.dense_optimizers import dense_optimizers, freeze
from trainer.plan.kept_part import NO_WORK, find_part

CPU = torch.device("cpu")
AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
DECIDES_NOTHING: dict[str, Any] = {
    **{section: True for section in ("planner", "comms", "checkpoint", "report")},
    "train": {"steps", "epochs"},
}
"""Keys of the configuration."""
FLOAT = 4  # size in bytes of a value in a batch
GROUPS = 8  # of samples of sequence models that are traced
BYTES_TO_INITIALIZE = BLOCK_VALUES * (4 * 8 + 4)  # the random counters and bits of a block of a table, and its values

aten = torch.ops.aten
ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
)
BATCHED = (aten.bmm, aten.baddbmm, *ATTENTION)
# The step runs on a CPU. Torch has no formulas for attention on a CPU; those for a GPU count the same products.
ON_GPU = (aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_flash_attention_backward)
FORMULAS = flop_registry | {one: flop_registry[other] for one, other in zip(ATTENTION, ON_GPU, strict=True)}
WITHOUT_WORK = (
    *(aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided, aten.detach),
    *(aten._unsafe_view, aten.promote_types),
)


def dense_part(config: Config, world_size: int, on_gpu: bool = False) -> DensePart:
    """Returns memory and work of the dense part on each rank; a second call with equal arguments is free.

    Losses that compare samples of the global batch need other ranks and are left out. If a model cannot take a step
    without values, its dense part counts as nothing, and a warning is printed.

    Raises:
        InputError: The model cannot be built.
    """
    # Cached without the excluded sections: plans for several clusters differ in them, but the dense part does not. Of
    # the ranks only the rows of a local batch matter.
    shape = *_rows(config, world_size), on_gpu
    decides = [config.model_dump(mode="json", exclude=DECIDES_NOTHING), *shape]
    return find_part(decides, lambda: _measure(config.model_dump_json(exclude={"planner", "comms"}), *shape))


@lru_cache(maxsize=256)
def _measure(config_json: str, rows: int, samples_per_lane: int, on_gpu: bool) -> DensePart:
    config = Config.model_validate_json(config_json)
    with torch.random.fork_rng(), FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _track_groups(config, rows, samples_per_lane, on_gpu)
        except InputError:
            raise
        except Exception as error:  # a user's model may need values, or fail in its job's steps, too
            reason = " ".join(str(error).split())[:200]
            logging.warning("plans leave out the dense part, which takes no step without values: %s", reason)
            return _part(config, weights=0, gradients=0, state=0, activations=0, work=NO_WORK)


def _track_groups(config: Config, rows: int, samples_per_lane: int, on_gpu: bool) -> DensePart:
    """Returns memory and work of a step, in which sequence models compute groups of samples one after the other.

    There may be hundreds, and each takes up to seconds to trace. A few larger groups need more memory at once than one
    of those, but what all of them keep for backward is the same, and more.
    """
    counted = CountedGroups(GROUPS, PAIRS_ON_GPU if on_gpu else PAIRS)
    with count_groups(counted):
        found = _track(config, rows, samples_per_lane)
    more = max(1.0, counted.all / GROUPS)
    return replace(found, work=replace(found.work, kernels=more * found.work.kernels))


def _track(config: Config, rows: int, samples_per_lane: int) -> DensePart:
    model = build_model_with_loss(config, CPU, AUTOCAST[config.train.precision], samples_per_lane)
    freeze(model, config.optimizer.dense.frozen)
    _leave_lookups_out(model)
    weights = {name: weight for name, weight in model.named_parameters() if table_of_weight(name) is None}
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    optimizers = [*dense_optimizers(trained, config.optimizer.dense, is_checked=False).values()]
    _make_state(optimizers, trained)
    state = [value for one in optimizers for slots in one.state.values() for value in slots.values()]
    tracker, work = _Tracker(), WorkCounter()
    tracker.track_external(*weights.values(), *(value for value in state if isinstance(value, Tensor)))
    with tracker, work:
        _step(config, model, optimizers, _batch(config, rows // config.train.micro_batches))
    found = {
        "weights": sum(weight.nbytes for weight in weights.values()),
        "gradients": sum(weight.nbytes for weight in trained.values()),
        "state": sum(value.nbytes for value in state if isinstance(value, Tensor)),
    }
    of_steps = work.of_steps(config.train.micro_batches, found["gradients"])
    return _part(config, **found, activations=_most(tracker) - found["weights"] - found["state"], work=of_steps)


def _make_state(optimizers: list[Any], trained: dict[str, nn.Parameter]) -> None:
    """Has the optimizers make their state, as they do in the step before the measured step."""
    for weight in trained.values():
        weight.grad = torch.zeros_like(weight)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def _part(config: Config, *, weights: int, gradients: int, state: int, activations: int, work: DenseWork) -> DensePart:
    data = config.data
    memory = DenseMemory(
        weights=weights,
        gradients=gradients,
        state=state,
        averages=weights if config.optimizer.ema.decay else 0,
        activations=activations,
        sample=FLOAT * (data.dense_width + len(data.labels) + 2 * len(data.groups) + 2),
        build=BYTES_TO_INITIALIZE,
    )
    return DensePart(memory, work)


def _rows(config: Config, world_size: int) -> tuple[int, int]:
    """Returns the number of rows in a local batch, negatives included, and the number of samples in a lane."""
    lanes = config.data.lanes or world_size * -(-MIN_LANES // world_size)
    samples = config.data.global_batch_size // lanes
    return config.data.catalogue.lane_rows(samples).total * lanes // world_size, samples


def _step(config: Config, model: ModelWithLoss, optimizers: list[Any], batch: Batch) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    samples_of(model).begin(config.train.seed, 1, batch.places, batch.weights)
    predictions = model.losses.named(model.predict(batch))
    if _needs_other_ranks(config):
        loss = torch.stack([prediction.sum() for prediction in predictions.values()]).sum()
    else:
        loss = model.losses.of(predictions, batch)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


def _needs_other_ranks(config: Config) -> bool:
    compared = [task for task in config.named_tasks().values() if task.compares_samples]
    weighting = WEIGHTINGS[config.model.task_weighting]
    return weighting.needs_gradients or any(task.across != "lane" for task in compared)


class WorkCounter(TorchDispatchMode):
    """Counts the work of the operations that run inside the block. Views and unset memory do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.batched_flops = self.bytes = self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and not func.is_view and func.overloadpacket not in WITHOUT_WORK:
            self._count(func.overloadpacket, args, kwargs or {}, found)
        return found

    def _count(self, operation: Any, args: Any, kwargs: Any, found: Any) -> None:
        flops = FORMULAS[operation](*args, **kwargs, out_val=found) if operation in FORMULAS else 0
        if operation in BATCHED:
            self.batched_flops += flops
        else:
            self.flops += flops
        self.kernels += 1
        # Of what it selects from, it reads as much as it returns.
        moved = (found, args[2:], found) if operation is aten.index_select else (args, kwargs, found)
        self.bytes += sum(value.nbytes for value in tree_leaves(moved) if isinstance(value, Tensor))

    def of_steps(self, number: int, gradients: int) -> DenseWork:
        """Returns the work of `number` steps like the counted step, after which gradients are summed once.

        Args:
            number: Number of microbatches.
            gradients: Size of the gradients in bytes.
        """
        return DenseWork(
            flops=number * self.flops,
            batched_flops=number * self.batched_flops,
            bytes=number * self.bytes,
            gradients=gradients,
            kernels=number * self.kernels,
        )


class _Tracker(MemTracker):
    """Tracks the memory of all modules together. Tracking by module fails for modules that are called repeatedly."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Autograd sums gradients in place in a real step. Without values each sum would be a new tensor, and count.
        if func is torch.ops.aten.add.Tensor and self._mod_tracker.is_bw and _can_add_in_place(*args[:2]):
            func = torch.ops.aten.add_.Tensor
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        trains = all(weight.requires_grad for weight in module.parameters())
        self._track_module_params_and_buffers(module, trains)  # so that gradients of weights are recognized

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        pass

    def _pre_bw_hook(self, module: nn.Module, args: Any) -> None:
        pass

    def _post_bw_hook(self, module: nn.Module, args: Any) -> None:
        pass


def _can_add_in_place(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    return one.shape == other.shape and one.dtype == other.dtype and one.is_contiguous()


def _most(tracker: _Tracker) -> int:
    """Returns the peak memory in bytes, without the gradients of weights, which are counted in the buckets."""
    snapshot = tracker.get_tracker_snapshot("peak")[CPU]
    by_kind = {getattr(kind, "value", kind): size for kind, size in snapshot.items()}
    return by_kind["Total"] - by_kind["Gradient"]


class _LookedUp(torch.autograd.Function):
    """Makes embeddings that are no leaves, like those of a sharded table: gradients are passed on and freed."""

    @staticmethod
    def forward(ctx: Any, placeholder: Tensor, rows: int, columns: int) -> Tensor:
        return placeholder.new_empty(rows, columns)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].new_empty(()), None, None


def _looked_up(rows: int, columns: int) -> Tensor:
    return _LookedUp.apply(torch.empty((), requires_grad=True), rows, columns)  # pyrefly: ignore[bad-return]


class _PooledWithoutValues(EmbeddingBagCollection):
    """Stand-in for pooled tables: returns embeddings of the right shape without a lookup."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Returns the embeddings of a batch."""
        keys = [name for table in self.embedding_bag_configs() for name in table.feature_names]
        widths = [table.embedding_dim for table in self.embedding_bag_configs() for _ in table.feature_names]
        return KeyedTensor(keys, widths, _looked_up(features.stride(), sum(widths)))


class _SequencesWithoutValues(EmbeddingCollection):
    """Stand-in for tables of sequences: returns embeddings of the right shape without a lookup."""

    def forward(self, features: KeyedJaggedTensor) -> dict[str, JaggedTensor]:
        """Returns the embeddings of every id, by feature."""
        found = {}
        for table in self.embedding_configs():
            for name in table.feature_names:
                ids = features[name]
                values = _looked_up(len(ids.values()), table.embedding_dim)
                found[name] = JaggedTensor(values, lengths=ids.lengths())
        return found


def _leave_lookups_out(model: nn.Module) -> None:
    """Replaces the tables of a model by stand-ins without lookups, in every module that uses them."""
    stubs: dict[type[nn.Module], type[nn.Module]] = {
        EmbeddingBagCollection: _PooledWithoutValues,
        EmbeddingCollection: _SequencesWithoutValues,
    }
    for module in model.modules():
        if type(module) in stubs:
            module.__class__ = stubs[type(module)]


def _batch(config: Config, samples: int) -> Batch:
    """Returns a batch without values; each feature has its expected number of ids."""
    data = config.data
    ids = [round(feature.hotness * samples) for feature in data.sparse.values()]
    sparse = KeyedJaggedTensor(
        keys=[*data.sparse],
        values=torch.empty(sum(ids), dtype=torch.int32),
        weights=torch.empty(sum(ids)) if data.has_id_weights else None,
        lengths=torch.empty(samples * len(ids), dtype=torch.int32),
        stride=samples,
        length_per_key=ids,
    )
    return Batch(
        dense=torch.empty(samples, data.dense_width),
        sparse=sparse,
        labels=torch.empty(samples, len(data.labels)),
        weights=torch.empty(samples),
        scale=torch.empty(()),
        groups=torch.empty(samples, len(data.groups), dtype=torch.int64),
        log_q=torch.empty(samples),
        places=torch.empty(samples, dtype=torch.int64),
    )
