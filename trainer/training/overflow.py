"""Finds steps whose loss or gradients are not finite, and skips them or ends training."""

from functools import partial

from torch import Tensor

from trainer.core.distributed import broadcast_from_rank0
from trainer.core.errors import InputError
from trainer.data.batch import Batch
from trainer.data.locate import locate
from trainer.training.loss_scale import LossScale
from trainer.training.nonfinite import explain
from trainer.training.session import Session


class OverflowCheck:
    """The check of a step between its gradients and its updates; does nothing if nothing asks for it.

    Args:
        session: The run.
        loss_scale: What the gradients are to be divided by.
    """

    def __init__(self, session: Session, loss_scale: LossScale) -> None:
        self._session, self._loss_scale = session, loss_scale
        self._config = session.config.train
        self._active = loss_scale.active or self._config.nonfinite != "ignore"
        self._buffers: list[tuple[Tensor, Tensor]] = []

    def before_forward(self) -> None:
        """Copies what forward itself changes, such as the running means of batch normalization."""
        if self._active:
            self._buffers = [(buffer, buffer.clone()) for buffer in self._session.model.model.buffers()]

    def passes(self, loss: Tensor) -> bool:
        """Divides the gradients by the loss scale and returns whether they and the loss are finite, on all ranks."""
        if not self._active:
            return True
        model = self._session.model
        dense = [weight.grad for weight in model.optimizers.dense_parameters if weight.grad is not None]
        finite = self._loss_scale.unscale([*dense, *model.cut.gradients, loss.clone()])
        if finite:
            self._loss_scale.update(finite)
        return finite

    def skip(self, step: int, batch: Batch) -> None:
        """Leaves model and optimizers as they were before the step.

        Raises:
            InputError: The configuration does not let such a step be skipped.
            SystemExit: The same, on the other ranks.
        """
        # An overflow is what the loss scale looks for, until the scale is too low to be its reason.
        if self._config.nonfinite != "skip" and (self._loss_scale.is_least or not self._loss_scale.active):
            self._refuse(step, batch)
        for buffer, before in self._buffers:
            buffer.copy_(before)
        self._session.model.cut.end()
        self._session.step_state.skipped += 1
        self._loss_scale.update(finite=False)

    def _refuse(self, step: int, batch: Batch) -> None:
        model, order, config, context = (
            self._session.model,
            self._session.order,
            self._session.config,
            self._session.context,
        )
        where = partial(locate, order.files, config.data, order.lanes, config.train.seed, step)
        what = explain(model.model, model.cut, batch.split(self._config.micro_batches), context, where)

        def refuse() -> None:
            raise InputError(
                f"step {step}: {what}; train.nonfinite is '{self._config.nonfinite}': look at these samples, lower the "
                "learning rates, or use 'skip' to leave such steps out"
            )

        broadcast_from_rank0(context, refuse)
