"""One optimizer step."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from trainer.optim.gradients import GradientAverage, clamp, clip
from trainer.optim.table_kernels import replicated_weights
from trainer.run.step_clock import StepClock, named_range
from trainer.training.loss_scale import LossScale, StepState
from trainer.training.micro_batches import forward_in_slices
from trainer.training.nonfinite import FiniteCheck
from trainer.training.row_resets import RowResets
from trainer.training.sharded_model import ShardedModel

GRADIENTS = f"{EXCHANGE}: gradients"  # in traces; as a range named EXCHANGE it would count twice inside of BACKWARD


@dataclass(frozen=True)
class StepResult:
    """A step that was taken, or skipped.

    Attributes:
        loss: This rank's loss, a detached scalar, to be averaged over ranks.
        skipped: Whether nothing was updated, as the loss or a gradient was not finite.
        gradient_norm: Norm of the dense part's gradients before they were clipped; None without clipping.
    """

    loss: Tensor
    skipped: bool = False
    gradient_norm: Tensor | None = None

    @property
    def means(self) -> dict[str, Tensor]:
        """The values that are reported as means over the steps that were taken."""
        norm = {} if self.gradient_norm is None else {"gradient_norm": self.gradient_norm}
        return {} if self.skipped else {"loss": self.loss, **norm}


class TrainingStep(TrainPipelineSparseDist[Batch, Any]):
    """One optimizer step: set rates, forward, scale, backward, accumulate, check, clip, update, average.

    This class alone knows the parts of a step. `progress` of TorchRec's pipeline calls its methods in this order, and
    overlaps them with the input distribution of the next batch: `start_sparse_data_dist` (of the next batch),
    `enqueue_batch` (of the batch after it), `_forward`, `wait_sparse_data_dist`, `_backward`, `_optimizer_step`. After
    `detach` it attaches the model again by itself. A single rank on a CPU takes its steps without the pipeline.

    Of TorchRec's pipelines this one gives the losses of a plain loop and works on a CPU. SemiSync trains on stale
    embeddings, FusedSparseDist needs CUDA, and Prefetch a cache in front of tables in host memory.

    Args:
        model: The sharded model and its optimizers.
        config: The configuration.
        context: This process among the ranks.
        state: State that a step leaves to later steps.
        locate: Returns where a sample is in the files, by a step and a position in its global batch.

    Attributes:
        clock: The times of the parts.
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
        if context.device.type == "cpu":  # where TorchRec looks for a GPU four times a step, 0.1 of 3.5 ms
            self._stream_context = NoOpStream
        # With nothing to exchange. Microbatches need the pipeline, which looks up the whole batch.
        self._is_alone = context.world_size == 1 and config.train.micro_batches == 1
        self._model_with_loss, self._optimizers = model.model, model.optimizers
        self._cut, self._averages, self._id_map = model.cut, model.averages, model.id_map
        self._micro_batches, self._optim = config.train.micro_batches, config.optimizer
        self._world_size, self._step_state = context.world_size, state
        self._seed, self._rank = config.train.seed, context.rank
        self._loss_scale = LossScale(config.train, state)
        self._finite = FiniteCheck(model, config.train, context, self._loss_scale, state, locate)
        self._reset = RowResets(model.tensors, config.optimizer, config.train.seed)
        self._average, self._average_tables = _averages_of_gradients(model, context)
        self._step, self._loss = 0, torch.zeros(())
        self._skipped = False
        self._gradient_norm: Tensor | None = None
        self.clock = StepClock(context.device)

    def take(self, step: int, batches: Iterator[Batch]) -> StepResult:
        """Takes a step on the next batch.

        Args:
            step: Its number; the first is 1.
            batches: This rank's batches; up to two later batches are taken as well, to be distributed ahead.

        Raises:
            InputError: The loss or a gradient is not finite, and the configuration makes that an error.
        """
        self.clock.begin_step()
        # Before `progress`, which begins with zero_grad: fused kernels get their rates there.
        with named_range("update: rates"):
            self._optimizers.set_rates(step, self._step_state.skipped)
        self._step = step
        seed_step(self._seed, step, self._rank, self._device)
        loss = self.progress(batches)
        return StepResult(loss, self._skipped, self._gradient_norm)

    def progress(self, dataloader_iter: Iterator[Batch]) -> Tensor:
        """Takes a step on the next batch."""
        if not self._is_alone:  # a pipeline's calls are 0.2 of 2.9 ms, and 0.5 of 4.5 on a GPU
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
        """Waits for the numbers of these ids."""
        with self.clock.part(EXCHANGE):
            super().wait_sparse_data_dist(context)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Computes the loss, and the gradients of all microbatches but the last."""
        with self.clock.part(FORWARD):
            self._id_map.begin(self._step, self._reset)
            self._finite.before_forward()
            if self._micro_batches == 1:
                loss, outputs = self._model_with_loss(batch)
                self._loss = outputs.loss
            else:
                slices = batch.split(self._micro_batches)
                loss, self._loss = forward_in_slices(self._model_with_loss, self._cut, slices, self._loss_scale)
            return loss, self._loss

    def _backward(self, losses: Tensor) -> None:
        """Computes gradients; without a cut the tables are updated inside, by their fused optimizers."""
        with self.clock.part(BACKWARD):
            self._loss_scale.scale(losses).backward()
            with named_range(GRADIENTS):
                self._average()

    def _optimizer_step(self) -> None:
        """Updates tables and dense part, or neither."""
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
        clamp(self._cut.gradients, self._optim.sparse.max_gradient, self._world_size)
        with named_range("update: tables"):
            self._cut.backward()
            with named_range(GRADIENTS):
                self._average_tables()
        self._optimizers.combined.step()
        if self._averages:
            self._averages.update()

    def detach(self) -> nn.Module:
        """Ends the step and returns the model to evaluate; an evaluation is no part of a step."""
        self.clock.end_step()
        return super().detach()

    def attach(self, model: nn.Module | None = None, sparse_dist: bool = False) -> None:
        """Goes on after `detach` with the ids of the next batch, which are distributed already.

        TorchRec's default is to distribute them anew, which leaves it without the numbers of ids in sequences.
        """
        super().attach(model, sparse_dist)


def _averages_of_gradients(model: ShardedModel, context: DistributedContext) -> tuple[GradientAverage, GradientAverage]:
    """Returns what averages the gradients after backward, and after backward has gone on into the tables, on CPUs."""
    if context.device.type != "cpu" or context.world_size == 1:
        return GradientAverage([], 1), GradientAverage([], 1)
    dense, tables = model.optimizers.dense_parameters, replicated_weights(model.model)
    of_step, after_cut = ([*dense], tables) if model.cut else ([*dense, *tables], [])
    return GradientAverage(of_step, context.world_size), GradientAverage(after_cut, context.world_size)


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seeds torch's generators, before a step, for what a model draws in it, such as masks of dropout.

    A resumed run then draws the same as one that was never stopped, whatever was drawn between the steps.

    Args:
        seed: The seed of the run.
        step: The step.
        rank: This rank, whose samples get other numbers than those of other ranks.
        device: Where the model is.
    """
    (mixed,) = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64).tolist()
    # Not torch.manual_seed, which without a GPU formats a traceback each time, for the day that there is one.
    torch.default_generator.manual_seed(mixed)
    if device.type == "cuda":  # also what recorded kernels draw that are replayed
        torch.cuda.manual_seed(mixed)
