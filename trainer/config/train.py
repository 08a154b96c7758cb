"""Configuration of training: its length, evaluations and fine-tuning."""

from typing import Annotated, Literal, Self

import pydantic

from trainer.config.may_change import MayChange
from trainer.config.section import Section
from trainer.core.errors import InputError
from trainer.core.timeouts import COLLECTIVE_TIMEOUT


class TrainConfig(Section):
    """Length, seed and precision of training."""

    steps: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Steps to train for; set this or epochs, not both."""
    epochs: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Passes over the training data; set this or steps, not both."""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)
    """Seed of the initial weights and of the order of the data."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision in which the dense part computes; weights and losses stay float32."""
    # Below the timeout of collectives, which ends the job before a later report.
    stuck_seconds: Annotated[float, MayChange] = pydantic.Field(
        default=300.0, gt=0, lt=COLLECTIVE_TIMEOUT.total_seconds()
    )
    """After this time without progress every rank prints its stack; after 600 s the job ends."""
    preflight_seconds: Annotated[float, MayChange] = pydantic.Field(
        default=0.0, ge=0, lt=COLLECTIVE_TIMEOUT.total_seconds()
    )
    """Let all ranks exchange data before training, which names slow and dead hosts, in at most this time. 0: off."""


class EvaluateConfig(Section):
    """Evaluation: when, in which batches, and by which metrics."""

    every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Evaluate on data.validation every so many steps. 0: only at the end."""
    global_batch_size: Annotated[pydantic.PositiveInt | None, MayChange] = None
    """Samples per evaluation step, over all ranks. Unset: data.global_batch_size."""
    metrics: Annotated[list[str], MayChange] = ["auc", "normalized_entropy", "log_loss", "calibration", "label_rate"]
    """Metrics to compute; package.module:Class for one of your own (see docs/configuration.md)."""


class FinetuneConfig(Section):
    """Fine-tuning: another run's checkpoint to start from. A run with a checkpoint of its own resumes from that."""

    checkpoint: str | None = None
    """A run directory, for its newest checkpoint, or one of its checkpoints/step-NUMBER. Unset: start from scratch."""
    names: str | None = None
    """A text file for weights with another name: on each line the name in this model and that in the checkpoint."""
    optimizer_state: bool = True
    """Load the optimizers' state, too. Off: the optimizers start from scratch."""
    allow_missing: list[str] = []
    """Tables and weights that the checkpoint may lack; they start from scratch. Names, or patterns with *."""
    exclude: list[str] = []
    """Tables and weights that start from scratch even if the checkpoint has them. Names or patterns."""
    ignore_unexpected: list[str] = []
    """Tables and weights of the checkpoint that this model may lack. Names or patterns."""

    @pydantic.model_validator(mode="after")
    def _belongs_to_a_checkpoint(self) -> Self:
        given = self.model_dump(exclude_defaults=True)
        if self.checkpoint is None and given:
            raise InputError(f"finetune.{min(given)} is set, but finetune.checkpoint is not; set both or none")
        return self
