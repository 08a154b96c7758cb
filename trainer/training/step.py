"""An optimizer step: `TrainingStep` fills in the parts of TorchRec's pipeline.

For the arithmetic of a step read `_forward`, `_backward`, `_optimizer_step` and `_update`, in this order. The rest is
about what overlaps with what.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.distributed.train_pipeline import TrainPipelineContext, TrainPipelineSparseDist
from torchrec.distributed.train_pipeline.postproc import NoOpStream

from torchx_recsys.planner.step_time import BACKWARD, EXCHANGE, FORWARD, INPUT, UPDATE
from trainer.batches.batch import Batch
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext
from trainer.models.base import BatchOutputs
from trainer.models.step_samples import samples_of
from trainer.optim.gradients import GradientAverage, clamp, clip, penalize
from trainer.optim.table_kernels import replicated_weights
from trainer.run.step_clock import StepClock, named_range
from trainer.training.loss_scale import LossScale, StepState
from trainer.training.micro_batches import forward_in_slices
from trainer.training.nonfinite import FiniteCheck
from trainer.training.row_resets import RowResets
from trainer.training.sharded_model import ShardedModel

SEEDS_AT_ONCE = 64  # one by one, a seed took 45 us of a step of 2.2 ms: NumPy's code was no longer in the cache
GRADIENTS = f"{EXCHANGE}: gradients"  # not just EXCHANGE, whose time would count twice in traces, inside BACKWARD


@dataclass(frozen=True)
class StepResult:
    """The result of a step that was taken or skipped.

    Attributes:
        loss: This rank's loss, a detached scalar; the loss of the step is the mean over the ranks.
        outputs: What the model gave for each microbatch of this rank.
        skipped: Whether nothing was updated because the loss or a gradient was not finite.
        gradient_norm: Norm of the dense gradients before clipping; None without clipping.
    """

    loss: Tensor
    outputs: Sequence[BatchOutputs] = ()
    skipped: bool = False
    gradient_norm: Tensor | None = None

    @property
    def means(self) -> dict[str, Tensor]:
        """The values that are reported as means over the steps of an interval, skipped steps excluded."""
        norm = {} if self.gradient_norm is None else {"gradient_norm": self.gradient_norm}
        return {} if self.skipped else {"loss": self.loss, **norm}


class TrainingStep(TrainPipelineSparseDist[Batch, Any]):
    """An optimizer step: set rates, forward, scale, backward, accumulate, check, clip, update, average.

    No other class knows the parts of a step. TorchRec's pipeline calls the methods from `progress` and overlaps them
    with the input distribution of the next batch, in this order: `start_sparse_data_dist` (for the next batch),
    `enqueue_batch` (for the batch after it), `_forward`, `wait_sparse_data_dist`, `_backward`, `_optimizer_step`. After
    `detach`, the next step attaches the model again. Steps without an exchange are taken without the pipeline.

    TorchRec has other pipelines, but only this pipeline gives the losses of a plain loop and works on a CPU. SemiSync
    trains on stale embeddings, FusedSparseDist needs CUDA, and Prefetch needs a cache for tables in host memory.

    Args:
        model: The sharded model and its optimizers.
        config: The configuration.
        context: This process among the ranks.
        state: State that later steps need besides weights and optimizer state.
        locate: Returns where a sample is in the files, by a step and a position in its global batch.

    Attributes:
        clock: Times the parts of the step.
    """

    def __init__(
        self,
        model: ShardedModel,
        config: Config,
        context: DistributedContext,
        state: StepState,
        locate: Callable[[int, int], str],
    ) -> None:
        super().__init__(model.model, model.optimizers.combined, context.device, custom_model_fwd=self._forward)
        if context.device.type == "cpu":  # TorchRec would look for a GPU four times a step: 0.1 of 3.5 ms
            self._stream_context = NoOpStream
        # A single rank has nothing to exchange, nor has a model without tables. Microbatches still need the pipeline,
        # which looks up the whole batch.
        is_alone = context.world_size == 1 and config.train.micro_batches == 1
        self._exchanges = not is_alone and bool(config.data.features_of_tables())
        self._model_with_loss, self._optimizers = model.model, model.optimizers
        self._cut, self._averages, self._id_map = model.cut, model.averages, model.id_map
        self._micro_batches, self._optim = config.train.micro_batches, config.optimizer
        self._world_size, self._step_state = context.world_size, state
        self._global_batch_size = config.data.global_batch_size
        self._seed, self._rank, self._samples = config.train.seed, context.rank, samples_of(model.model)
        self._loss_scale = LossScale(config.train, state)
        self._finite = FiniteCheck(model, config.train, context, self._loss_scale, state, locate)
        self._reset = RowResets(model.tensors, config.optimizer, config.train.seed, config.model.init_of)
        self._average, self._average_tables = _averages_of_gradients(model, context)
        self._step, self._loss = 0, torch.zeros(())
        self._outputs: Sequence[BatchOutputs] = ()
        self._skipped = False
        self._gradient_norm: Tensor | None = None
        self.clock = StepClock(context.device)

    def take(self, step: int, batches: Iterator[Batch]) -> StepResult:
        """Takes a step on the next batch.

        Args:
            step: Number of the step; the first is 1.
            batches: This rank's batches. Up to two later batches are taken as well, to be distributed ahead.

        Raises:
            InputError: The loss or a gradient is not finite, and the configuration treats that as an error.
        """
        self.clock.begin_step()
        # Must precede `progress`, which begins with zero_grad: that is where fused kernels get their rates.
        with named_range("update: rates"):
            self._optimizers.set_rates(step, self._step_state.skipped)
        self._step = step
        seed_step(self._seed, step, self._rank, self._device)
        loss = self.progress(batches)
        return StepResult(loss, self._outputs, self._skipped, self._gradient_norm)

    def progress(self, dataloader_iter: Iterator[Batch]) -> Tensor:
        """Takes a step on the next batch."""
        # Without the pipeline its calls are saved: 0.2 of 2.9 ms on a CPU, 0.5 of 4.5 ms on a GPU.
        if self._exchanges:
            return super().progress(dataloader_iter)
        self._optimizers.combined.zero_grad()
        with self.clock.part(INPUT):
            batch = next(dataloader_iter)
            if self._device.type == "cuda":
                batch = batch.to(self._device, non_blocking=True)
        self.batches = deque([batch])
        loss, output = self._forward(batch)
        self._backward(loss)
        self._optimizer_step()
        return output

    def enqueue_batch(self, dataloader_iter: Iterator[Batch]) -> bool:
        """Waits for a batch, and begins to copy it to the device."""
        with self.clock.part(INPUT):
            return super().enqueue_batch(dataloader_iter)

    def start_sparse_data_dist(self, batch: Batch | None, context: TrainPipelineContext) -> None:
        """Begins to exchange the ids of the next batch."""
        with self.clock.part(EXCHANGE):
            super().start_sparse_data_dist(batch, context)

    def wait_sparse_data_dist(self, context: TrainPipelineContext) -> None:
        """Waits for the numbers of ids that the ranks will exchange."""
        with self.clock.part(EXCHANGE):
            super().wait_sparse_data_dist(context)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Computes the loss, and the gradients of all microbatches but the last."""
        with self.clock.part(FORWARD):
            self._id_map.begin(self._step, self._reset)
            self._finite.before_forward()
            if self._micro_batches == 1:
                self._begin(batch)
                loss, outputs = self._model_with_loss(batch)
                self._outputs, self._loss = [outputs], outputs.loss
            else:
                slices = batch.split(self._micro_batches)
                loss, self._outputs = forward_in_slices(
                    self._model_with_loss, self._cut, slices, self._loss_scale, self._begin
                )
                self._loss = torch.stack([outputs.loss for outputs in self._outputs]).sum()
            return loss, self._loss

    def _begin(self, micro_batch: Batch) -> None:
        """Tells the model which samples of the global batch come next."""
        self._samples.begin(self._seed, self._step, micro_batch.places, micro_batch.weights, self._world_size)

    def _backward(self, losses: Tensor) -> None:
        """Computes gradients. Without a cut, fused optimizers update the tables inside backward."""
        with self.clock.part(BACKWARD):
            self._loss_scale.scale(losses).backward()
            with named_range(GRADIENTS):
                self._average()

    def _optimizer_step(self) -> None:
        """Updates tables and dense part, or skips the step and updates neither."""
        with self.clock.part(UPDATE):
            self._skipped, self._gradient_norm = not self._finite.passes(self._loss), None
            if self._skipped:
                batch = self.batches[0]
                assert batch is not None
                self._finite.skip(self._step, batch)
            else:
                self._update()

    def _update(self) -> None:
        self._gradient_norm = clip(self._optimizers.dense_parameters, self._optim.dense)
        penalize(self._cut.leaves, self._optim.sparse.embedding_l2, self._global_batch_size, self._world_size)
        clamp(self._cut.gradients, self._optim.sparse.max_gradient, self._world_size)
        with named_range("update: tables"):
            self._cut.backward()
            with named_range(GRADIENTS):
                self._average_tables()
        self._optimizers.step()
        if self._averages:
            self._averages.update()

    def detach(self) -> nn.Module:
        """Ends the step's time and returns the model, to evaluate it."""
        self.clock.end_step()
        return super().detach()

    def attach(self, model: nn.Module | None = None, sparse_dist: bool = False) -> None:
        """Continues after `detach` with the ids of the next batch, which are distributed already.

        TorchRec would distribute them again by default, and then lacks the numbers of ids in sequences.
        """
        super().attach(model, sparse_dist)


def _averages_of_gradients(model: ShardedModel, context: DistributedContext) -> tuple[GradientAverage, GradientAverage]:
    """Returns the averages of gradients over the ranks: after backward, and after its continuation into the tables.

    They do nothing on a GPU, where DistributedDataParallel averages, and on a single rank.
    """
    if context.device.type != "cpu" or context.world_size == 1:
        return GradientAverage([], 1), GradientAverage([], 1)
    dense, tables = model.optimizers.dense_parameters, replicated_weights(model.model)
    # With a cut, replicated tables have no gradient before backward continues into the tables.
    of_step, after_cut = ([*dense], tables) if model.cut else ([*dense, *tables], [])
    return GradientAverage(of_step, context.world_size), GradientAverage(after_cut, context.world_size)


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seeds torch's generators before a step, for the random numbers of the model, such as dropout masks.

    A resumed run then draws the same numbers as an uninterrupted run, whatever was drawn between the steps.

    Args:
        seed: The seed of the run.
        step: The step.
        rank: This rank; each rank draws other numbers.
        device: Device of the model.
    """
    block, place = divmod(step, SEEDS_AT_ONCE)
    mixed = _seeds(seed, block, rank)[place]
    # Not torch.manual_seed: without a GPU it formats a traceback at each call, to keep for a later use of CUDA.
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":  # holds for CUDA graphs, too, which draw when they are replayed
        torch.cuda.manual_seed(mixed)


@lru_cache(maxsize=2)
def _seeds(seed: int, block: int, rank: int) -> list[int]:
    """Returns the seeds of `SEEDS_AT_ONCE` steps."""
    steps = range(block * SEEDS_AT_ONCE, (block + 1) * SEEDS_AT_ONCE)
    states = [np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64) for step in steps]
    return np.concatenate(states).tolist()
