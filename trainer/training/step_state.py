"""What a step leaves behind: its result, and the state that later steps need."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class StepState:
    """What steps leave to those after them, besides weights and optimizer state; a part of the train state.

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


@dataclass(frozen=True)
class StepResult:
    """A step that was taken, or skipped.

    Attributes:
        loss: This rank's loss, a detached scalar, to be averaged over ranks.
        skipped: Whether nothing was updated, as the loss or a gradient was not finite.
        gradient_norm: Norm of the dense part's gradients before they were clipped; None where they are not.
    """

    loss: Tensor
    skipped: bool = False
    gradient_norm: Tensor | None = None

    @property
    def means(self) -> dict[str, Tensor]:
        """What is reported as means over the steps that were taken."""
        norm = {} if self.gradient_norm is None else {"gradient_norm": self.gradient_norm}
        return {} if self.skipped else {"loss": self.loss, **norm}
