"""One optimizer step."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from trainer.data.batch import Batch
from trainer.optim.clipping import clip
from trainer.run.recording import part
from trainer.training.loss_scale import LossScale
from trainer.training.micro_batches import forward_in_parts
from trainer.training.overflow import OverflowCheck
from trainer.training.row_resets import RowResets
from trainer.training.session import Session
from trainer.training.step_state import StepResult


class TrainingStep(TrainPipelineSparseDist[Batch, Any]):
    """One optimizer step: set rates, forward, scale, backward, accumulate, check, clip, update, average.

    TorchRec's pipeline calls the methods below in their order, and overlaps them with the input distribution of the
    next batch. This class alone knows the parts of a step.

    Of TorchRec's pipelines this one gives the losses of a plain loop and works on a CPU. SemiSync trains on stale
    embeddings, FusedSparseDist needs CUDA, and Prefetch a cache in front of tables in host memory.

    Args:
        session: The run.

    Attributes:
        skipped: Whether the latest step was skipped.
        gradient_norm: Norm of its dense gradients before they were clipped; None where they were not.
    """

    def __init__(self, session: Session) -> None:
        model, config, context = session.model, session.config, session.context
        super().__init__(model.model, model.optimizers.combined, context.device, custom_model_fwd=self._forward)
        self._model_with_loss, self._optimizers = model.model, model.optimizers
        self._cut, self._averages = model.cut, model.averages
        self._micro_batches, self._optim = config.train.micro_batches, config.optimizer
        self._world_size, self._step_state = context.world_size, session.step_state
        self._loss_scale = LossScale(config.train, self._step_state)
        self._overflow = OverflowCheck(session, self._loss_scale)
        self._managed = model.managed
        self._reset = RowResets(model.tensors, config.optimizer, config.train.seed)
        self._step, self._loss = 0, torch.zeros(())
        self.skipped = False
        self.gradient_norm: Tensor | None = None

    def take(self, step: int, batches: Iterator[Batch]) -> StepResult:
        """Takes a step on the next batch.

        Args:
            step: Its number; the first is 1.
            batches: This rank's batches; up to two beyond this step's are taken from it, to be distributed ahead.

        Raises:
            InputError: The loss or a gradient is not finite, and the configuration makes that an error.
        """
        # Before `progress`, which begins with zero_grad: fused kernels get their rates there.
        with part("rates"):
            self._optimizers.set_rates(step, self._step_state.skipped)
        self._step = step
        loss = self.progress(batches)
        return StepResult(loss, self.skipped, self.gradient_norm)

    def attach(self, model: nn.Module | None = None, sparse_dist: bool = False) -> None:
        """Goes on after `detach` with the ids of the next batch, which are distributed already.

        TorchRec's default is to distribute them anew, which leaves it without the numbers of ids in sequences.
        """
        super().attach(model, sparse_dist)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Computes the loss and, of all micro-batches but the last, the gradients."""
        self._managed.begin(self._step, self._reset)
        self._overflow.before_forward()
        if self._micro_batches == 1:
            loss, outputs = self._model_with_loss(batch)
            self._loss = outputs.loss
        else:
            parts = batch.split(self._micro_batches)
            loss, self._loss = forward_in_parts(self._model_with_loss, self._cut, parts, self._loss_scale)
        return loss, self._loss

    def _backward(self, losses: Tensor) -> None:
        """Computes gradients; without a cut the tables are updated inside, by their fused optimizers."""
        with part("backward"):
            self._loss_scale.scale(losses).backward()

    def _optimizer_step(self) -> None:
        """Updates tables and dense part, or neither."""
        with part("optimizer"):
            self.skipped, self.gradient_norm = not self._overflow.passes(self._loss), None
            if self.skipped:
                batch = self.batches[0]
                assert batch is not None
                self._overflow.skip(self._step, batch)
            else:
                self._update()

    def _update(self) -> None:
        self.gradient_norm = clip(self._optimizers.dense_parameters, self._optim.dense)
        self._cut.clamp(self._optim.sparse.max_gradient, self._world_size)
        with part("table update"):
            self._cut.backward()
        self._optimizers.combined.step()
        if self._averages:
            self._averages.update()
