"""The dynamic loss scale, and the state that later steps need besides weights and optimizer state.

The loss scale keeps small float16 gradients from vanishing. Torch's GradScaler divides gradients after backward. Fused
tables are updated within backward: Adagrad's state would sum squares of scaled gradients, and an overflow could not be
undone. Here gradients are divided at the cut (`cut.py`).
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config.train import TrainConfig

MIN_SCALE = 1.0


@dataclass
class StepState:
    """State that later steps need besides weights and optimizer state; a part of the train state.

    Attributes:
        skipped: Number of skipped steps since the start of the run.
        loss_scale: The loss scale; 1 if the loss is not scaled.
        finite_steps: Number of steps without an overflow since the scale last changed.
    """

    skipped: int = 0
    loss_scale: float = 1.0
    finite_steps: int = 0

    def report(self, scales_loss: bool) -> dict[str, float]:
        """Returns figures for metrics.jsonl: the loss scale if the loss is scaled, and skipped steps if any."""
        scale = {"loss_scale": self.loss_scale} if scales_loss else {}
        return scale | ({"skipped_steps": self.skipped} if self.skipped else {})


def start_state(config: TrainConfig, saved: dict[str, Any] | None) -> StepState:
    """Returns the state that training starts from: the state in a checkpoint, or a fresh one."""
    return StepState(**saved) if saved else StepState(loss_scale=config.first_loss_scale)


class LossScale:
    """The dynamic loss scale: grows after many steps without an overflow, shrinks at every overflow.

    It follows the rule of torch.amp.GradScaler, but never falls below 1, where the scale cannot cause an overflow.

    Args:
        config: Whether and how the loss is scaled.
        state: Holds the scale.
    """

    def __init__(self, config: TrainConfig, state: StepState) -> None:
        self.active, self._config, self._state = config.scales_loss, config.loss_scale, state

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the scaled loss, for backward."""
        return loss * self._state.loss_scale if self.active else loss

    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divides gradients by the scale, in place; returns whether they are finite on all ranks."""
        return all_finite(gradients, 1.0 / self._state.loss_scale)

    @property
    def is_least(self) -> bool:
        """Whether the scale cannot shrink further."""
        return self._state.loss_scale <= MIN_SCALE

    def update(self, finite: bool) -> None:
        """Sets the scale of the next step; `finite` means that this step had no overflow."""
        if not self.active:
            return
        config, state = self._config, self._state
        state.finite_steps = state.finite_steps + 1 if finite else 0
        if not finite:
            state.loss_scale = max(MIN_SCALE, state.loss_scale * config.backoff_factor)
        elif state.finite_steps == config.growth_interval:
            state.loss_scale, state.finite_steps = state.loss_scale * config.growth_factor, 0


def all_finite(tensors: Iterable[Tensor], factor: float = 1.0) -> bool:
    """Multiplies tensors by a factor, in place; returns whether they are finite on all ranks."""
    # By type, because a call of the kernel takes tensors of a single type.
    kinds: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        kinds[tensor.dtype].append(tensor)
    device = next(iter(kinds.values()))[0].device
    found, factors = torch.zeros(1, device=device), torch.full((1,), factor, device=device)
    for same in kinds.values():
        torch._amp_foreach_non_finite_check_and_unscale_(same, found, factors)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return not found.item()
