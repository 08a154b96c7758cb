"""Memory and work of the dense part of a model in a step, from a step of it on tensors without values."""

import gc
import logging
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.batch import Batch
from trainer.data.lanes import MIN_LANES
from trainer.models.builder import build_model_with_loss
from trainer.models.embeddings import table_of_weight
from trainer.models.tasks import ModelWithLoss
from trainer.optim.dense_optimizers import dense_optimizers, freeze
from trainer.plan.dense_work import DenseWork, WorkCounter

CPU = torch.device("cpu")
AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
STEPS = 2  # the optimizer has its state from the first one on


@dataclass(frozen=True, kw_only=True)
class DenseMemory:
    """Bytes of the dense part, the same on every rank.

    Attributes:
        weights: Its weights.
        gradients: Gradients of those that train, in the buckets of DistributedDataParallel from the build on.
        state: State of their optimizers.
        activations: The most that a step has beside these at once: the embeddings that it gets, with their gradients,
            what backward needs, and temporaries.
    """

    weights: int
    gradients: int
    state: int
    activations: int


NO_MEMORY = DenseMemory(weights=0, gradients=0, state=0, activations=0)
NO_WORK = DenseWork(flops=0, batched_flops=0, bytes=0, gradients=0)


def dense_memory(config: Config, world_size: int) -> DenseMemory:
    """Returns the memory of the dense part on each of some ranks; a second call with the same takes no time.

    Losses that need other ranks, which compare the samples of the global batch, are left out. Of a model that cannot
    take a step without values, nothing is known: a warning says so.

    Raises:
        InputError: The model cannot be built.
    """
    return _traced(config, world_size)[0]


def dense_work(config: Config, world_size: int) -> DenseWork:
    """Returns what the dense part does in a step on each of some ranks, from the same trace as its memory.

    Raises:
        InputError: The model cannot be built.
    """
    return _traced(config, world_size)[1]


def _traced(config: Config, world_size: int) -> tuple[DenseMemory, DenseWork]:
    # Clusters differ in what is left out, and in the ranks, of which only their rows matter.
    return _measure(config.model_dump_json(exclude={"planner", "comms"}), *_rows(config, world_size))


@lru_cache(maxsize=256)
def _measure(config_json: str, rows: int, samples_per_lane: int) -> tuple[DenseMemory, DenseWork]:
    config = Config.model_validate_json(config_json)
    with torch.random.fork_rng(), FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _track(config, rows, samples_per_lane)
        except InputError:
            raise
        except Exception as error:  # of a model of one's own, which may need values, or fail in a step of its job, too
            reason = " ".join(str(error).split())[:200]
            logging.warning("plans leave out the dense part, which takes no step without values: %s", reason)
            return NO_MEMORY, NO_WORK


def _track(config: Config, rows: int, samples_per_lane: int) -> tuple[DenseMemory, DenseWork]:
    model = build_model_with_loss(config, CPU, AUTOCAST[config.train.precision], samples_per_lane)
    freeze(model, config.optimizer.dense.frozen)
    _leave_lookups_out(model)
    weights = {name: weight for name, weight in model.named_parameters() if table_of_weight(name) is None}
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    optimizers = [*dense_optimizers(trained, config.optimizer.dense, is_checked=False).values()]
    tracker = _Tracker()
    tracker.track_external(*weights.values())
    work = WorkCounter()
    with tracker:
        for _ in range(STEPS):
            gc.collect()  # keyed tensors are in cycles, which would keep a step's embeddings until the next one
            batch, work = _batch(config, rows // config.train.micro_batches), WorkCounter()
            with work:
                _step(config, model, optimizers, batch)
    state = [value for one in optimizers for slots in one.state.values() for value in slots.values()]
    found = {
        "weights": sum(weight.nbytes for weight in weights.values()),
        "gradients": sum(weight.nbytes for weight in trained.values()),
        "state": sum(value.nbytes for value in state if isinstance(value, Tensor)),
    }
    memory = DenseMemory(**found, activations=_most(tracker) - found["weights"] - found["state"])
    return memory, work.of_steps(config.train.micro_batches, found["gradients"])


def _rows(config: Config, world_size: int) -> tuple[int, int]:
    """Returns the rows of a local batch, with its negatives, and the samples of a lane."""
    lanes = config.data.lanes or world_size * -(-MIN_LANES // world_size)
    samples = config.data.global_batch_size // lanes
    return config.data.catalogue.lane_rows(samples).total * lanes // world_size, samples


def _step(config: Config, model: ModelWithLoss, optimizers: list[Any], batch: Batch) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
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
    return config.model.task_weighting == "pareto" or any(task.across != "lane" for task in compared)


class _Tracker(MemTracker):
    """Tracks the bytes of all modules together; by module it fails where one is called twice, or with sequences."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Autograd adds gradients up in place, but for tensors without values, where each sum would be another tensor.
        if func is torch.ops.aten.add.Tensor and self._mod_tracker.is_bw and _can_add_in_place(*args[:2]):
            func = torch.ops.aten.add_.Tensor
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        trains = all(weight.requires_grad for weight in module.parameters())
        self._track_module_params_and_buffers(module, trains)  # so that it knows gradients of weights

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
    """Returns the bytes at the peak without gradients of weights, which are in the buckets."""
    snapshot = tracker.get_tracker_snapshot("peak")[CPU]
    by_kind = {getattr(kind, "value", kind): size for kind, size in snapshot.items()}
    return by_kind["Total"] - by_kind["Gradient"]


class _LookedUp(torch.autograd.Function):
    """Gives embeddings that, as those of sharded tables, are no leaves: their gradients are passed on and freed."""

    @staticmethod
    def forward(ctx: Any, placeholder: Tensor, rows: int, columns: int) -> Tensor:
        return placeholder.new_empty(rows, columns)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].new_empty(()), None, None


def _looked_up(rows: int, columns: int) -> Tensor:
    return _LookedUp.apply(torch.empty((), requires_grad=True), rows, columns)  # pyrefly: ignore[bad-return]


class _PooledWithoutValues(EmbeddingBagCollection):
    """Tables that give pooled embeddings without looking anything up."""

    def forward(self, features: KeyedJaggedTensor) -> KeyedTensor:
        """Returns the embeddings of a batch."""
        keys = [name for table in self.embedding_bag_configs() for name in table.feature_names]
        widths = [table.embedding_dim for table in self.embedding_bag_configs() for _ in table.feature_names]
        return KeyedTensor(keys, widths, _looked_up(features.stride(), sum(widths)))


class _SequencesWithoutValues(EmbeddingCollection):
    """Tables that give sequences of embeddings without looking anything up."""

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
    """Lets a model's tables look nothing up, whatever module of it calls them."""
    stubs: dict[type[nn.Module], type[nn.Module]] = {
        EmbeddingBagCollection: _PooledWithoutValues,
        EmbeddingCollection: _SequencesWithoutValues,
    }
    for module in model.modules():
        if type(module) in stubs:
            module.__class__ = stubs[type(module)]


def _batch(config: Config, samples: int) -> Batch:
    """Returns a batch without values, each feature with as many ids as are to be expected."""
    data = config.data
    ids = [round(feature.hotness * samples) for feature in data.sparse.values()]
    sparse = KeyedJaggedTensor(
        keys=[*data.sparse],
        values=torch.empty(sum(ids), dtype=torch.int32),
        lengths=torch.empty(samples * len(ids), dtype=torch.int32),
        stride=samples,
        length_per_key=ids,
    )
    return Batch(
        dense=torch.empty(samples, len(data.dense)),
        sparse=sparse,
        labels=torch.empty(samples, len(data.labels)),
        weights=torch.empty(samples),
        scale=torch.empty(()),
        groups=torch.empty(samples, len(data.groups), dtype=torch.int64),
        log_q=torch.empty(samples),
    )
