"""Configuration of reports."""

from typing import Annotated, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section


class ProfileConfig(Section):
    """Steps that torch.profiler records: traces, and a table of where the time of a step goes."""

    first_step: Annotated[int | None, MayChange] = pydantic.Field(default=None, ge=2)
    """First step to record; the step before warms the profiler up. Unset: only steps that are requested."""
    steps: Annotated[pydantic.PositiveInt, MayChange] = 5
    """Steps to record."""
    ranks: Annotated[list[pydantic.NonNegativeInt], MayChange] = [0]
    """Ranks that write a trace; the table covers all ranks."""
    stacks: Annotated[bool, MayChange] = False
    """Record Python's stacks as well, which stalls training for some 20 s when the trace is written."""
    memory: Annotated[bool, MayChange] = False
    """Record allocations as well, with a snapshot of the GPU's memory for pytorch.org/memory_viz; not on a CPU."""


class ReportConfig(Section):
    """Reports of training, and their interval."""

    interval_steps: Annotated[pydantic.PositiveInt, MayChange] = 50
    """Steps between two console lines and two lines of metrics.jsonl."""
    tensorboard: Annotated[bool, MayChange] = True
    """Write TensorBoard files to RUN_DIR/tensorboard."""
    histograms_every_steps: Annotated[pydantic.NonNegativeInt, MayChange] = 0
    """Steps between two histograms of all weights and embeddings in TensorBoard. 0: none."""
    profile: ProfileConfig = ProfileConfig()

    @pydantic.model_validator(mode="after")
    def _histograms_are_written(self) -> Self:
        if self.histograms_every_steps and not self.tensorboard:
            raise InputError(
                f"report.histograms_every_steps is {self.histograms_every_steps}, but report.tensorboard is false, and "
                "histograms are written to TensorBoard only; set it to true, or leave histograms_every_steps out"
            )
        return self
