"""The dynamic loss scale, and the state that a step leaves to later steps.

The loss scale keeps small gradients of float16 from vanishing. Torch's GradScaler divides gradients after backward, in
which fused tables are updated already: Adagrad's state would sum squares of scaled gradients, and an overflow could not
be taken back. Here gradients are divided at the cut.
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
    """State that a step leaves to later steps, besides weights and optimizer state; a part of the train state.

    Attributes:
        skipped: Steps that were skipped since the start of the run.
        loss_scale: The loss scale; 1 if the loss is not scaled.
        finite_steps: Steps without an overflow since the scale last changed.
    """

    skipped: int = 0
    loss_scale: float = 1.0
    finite_steps: int = 0

    def report(self, scales_loss: bool) -> dict[str, float]:
        """Returns the loss scale if the loss is scaled, and the number of skipped steps if there are any."""
        scale = {"loss_scale": self.loss_scale} if scales_loss else {}
        return scale | ({"skipped_steps": self.skipped} if self.skipped else {})


def start_state(config: TrainConfig, saved: dict[str, Any] | None) -> StepState:
    """Returns the state that training starts from: the state in a checkpoint, or a fresh one."""
    return StepState(**saved) if saved else StepState(loss_scale=config.first_loss_scale)


class LossScale:
    """The dynamic loss scale: grows after many steps without an overflow, and shrinks at every overflow.

    The rule is that of torch.amp.GradScaler, except for the least scale: the scale does not cause an overflow at 1.

    Args:
        config: Whether the loss is scaled, and by what rule.
        state: Holds the scale.
    """

    def __init__(self, config: TrainConfig, state: StepState) -> None:
        self.active, self._config, self._state = config.scales_loss, config.loss_scale, state

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss to call backward of."""
        return loss * self._state.loss_scale if self.active else loss

    def unscale(self, gradients: Iterable[Tensor]) -> bool:
        """Divides gradients by the scale, in place, and returns whether they are finite on all ranks."""
        return all_finite(gradients, 1.0 / self._state.loss_scale)

    @property
    def is_least(self) -> bool:
        """Whether the scale cannot shrink."""
        return self._state.loss_scale <= MIN_SCALE

    def update(self, finite: bool) -> None:
        """Chooses the scale of the next step; `finite` is whether this one had no overflow."""
        if not self.active:
            return
        config, state = self._config, self._state
        state.finite_steps = state.finite_steps + 1 if finite else 0
        if not finite:
            state.loss_scale = max(MIN_SCALE, state.loss_scale * config.backoff_factor)
        elif state.finite_steps == config.growth_interval:
            state.loss_scale, state.finite_steps = state.loss_scale * config.growth_factor, 0


def all_finite(tensors: Iterable[Tensor], factor: float = 1.0) -> bool:
    """Multiplies tensors by a factor, in place, and returns whether they are finite on all ranks."""
    kinds: dict[torch.dtype, list[Tensor]] = defaultdict(list)  # the kernel takes tensors of one type
    for tensor in tensors:
        kinds[tensor.dtype].append(tensor)
    device = next(iter(kinds.values()))[0].device
    found, factors = torch.zeros(1, device=device), torch.full((1,), factor, device=device)
    for same in kinds.values():
        torch._amp_foreach_non_finite_check_and_unscale_(same, found, factors)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return not found.item()
