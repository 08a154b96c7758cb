"""One optimizer step."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from trainer.core.distributed import broadcast_from_rank0
from trainer.core.errors import InputError
from trainer.data.batch import Batch
from trainer.data.locate import locate
from trainer.models.losses import LossAndOutputs
from trainer.optim.clipping import clip
from trainer.training.loss_scale import LossScale
from trainer.training.micro_batches import forward_in_parts
from trainer.training.nonfinite import explain
from trainer.training.session import Session
from trainer.training.step_state import StepResult


class TrainingStep(TrainPipelineSparseDist[Batch, Any]):
    """One optimizer step: set rates, forward, scale, backward, accumulate, check, clip, update.

    TorchRec's pipeline calls the methods below in their order, and overlaps them with the input distribution of the
    next batch. This class alone knows the parts of a step.

    Of TorchRec's pipelines this one gives the losses of a plain loop and works on a CPU. SemiSync trains on stale
    embeddings, FusedSparseDist needs CUDA, and Prefetch a cache in front of tables in host memory.

    Args:
        session: The run.

    Attributes:
        skipped: Whether the latest step was skipped.
    """

    def __init__(self, session: Session) -> None:
        model, config = session.model, session.config
        super().__init__(model.model, model.optimizers.combined, session.context.device, custom_model_fwd=self._forward)
        self._session, self._train, self._optim = session, config.train, config.optimizer
        self._optimizers, self._cut = model.optimizers, model.cut
        self._loss_scale = LossScale(config.train, session.step_state)
        self._step, self.skipped = 0, False
        self._loss = torch.zeros(())
        self._gradient_norm: Tensor | None = None

    def take(self, step: int, batches: Iterator[Batch]) -> StepResult:
        """Takes a step on the next batch.

        Args:
            step: Its number; the first is 1.
            batches: This rank's batches; up to two beyond this step's are taken from it, to be distributed ahead.

        Raises:
            InputError: The loss or a gradient is not finite, and the configuration makes that an error.
        """
        # Before `progress`, which begins with zero_grad: fused kernels get their rates there.
        self._optimizers.set_rates(step)
        self._step = step
        loss, *_ = self.progress(batches)
        return StepResult(loss, self.skipped, self._gradient_norm)

    def _forward(self, batch: Batch) -> LossAndOutputs:
        """Computes the loss and, of all micro-batches but the last, the gradients."""
        if self._train.micro_batches == 1:
            loss, outputs = self._model(batch)
        else:
            parts = batch.split(self._train.micro_batches)
            loss, outputs = forward_in_parts(self._session.model.model, self._cut, parts, self._loss_scale)
        self._loss, *_ = outputs
        return loss, outputs

    def _backward(self, losses: Tensor) -> None:
        """Computes gradients; without a cut the tables are updated inside, by their fused optimizers."""
        self._loss_scale.scale(losses).backward()

    def _optimizer_step(self) -> None:
        """Clips the gradients, and updates the tables and the dense part; or skips the step."""
        self.skipped = not self._gradients_are_finite()
        if self.skipped:
            self._skip()
        else:
            self._update()
        self._loss_scale.update(finite=not self.skipped)

    def _gradients_are_finite(self) -> bool:
        """Divides the gradients by the loss scale and returns whether they and the loss are finite, on all ranks."""
        if self._train.nonfinite == "ignore" and not self._loss_scale.active:
            return True
        dense = [weight.grad for weight in self._optimizers.dense_parameters if weight.grad is not None]
        return self._loss_scale.unscale([*dense, *self._cut.gradients, self._loss.clone()])

    def _update(self) -> None:
        self._gradient_norm = clip(self._optimizers.dense_parameters, self._optim.dense)
        self._cut.clamp(self._optim.sparse.max_gradient, self._session.context.world_size)
        self._cut.backward()
        self._optimizers.combined.step()

    def _skip(self) -> None:
        # An overflow is what the loss scale looks for, until the scale is too low to be its reason.
        if self._train.nonfinite != "skip" and (self._loss_scale.is_least or not self._loss_scale.active):
            self._refuse()
        self._gradient_norm = None
        self._cut.end()
        self._session.step_state.skipped += 1

    def _refuse(self) -> None:
        """Ends training, by an error that names what is not finite."""
        order, config, context = self._session.order, self._session.config, self._session.context
        where = partial(locate, order.files, config.data, order.lanes, config.train.seed, self._step)
        batch = self.batches[0]
        assert batch is not None
        what = explain(self._session.model.model, self._cut, batch.split(self._train.micro_batches), context, where)

        def refuse() -> None:
            raise InputError(
                f"step {self._step}: {what}; train.nonfinite is '{self._train.nonfinite}': look at these samples, "
                "lower the learning rates, or use 'skip' to leave such steps out"
            )

        broadcast_from_rank0(context, refuse)
