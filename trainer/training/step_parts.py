"""The time of a step's parts, beside what a plan predicts."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.distributed.train_pipeline import TrainPipelineContext

from trainer.data.batch import Batch
from trainer.training.session import Session
from trainer.training.step import TrainingStep
from trainer.training.step_state import StepResult

STEP, DATA, IDS, FORWARD, BACKWARD, OTHER = (
    "step",
    "wait for data",
    "exchange of ids",
    "forward",
    "backward and updates",
    "anything else",
)
PARTS = (DATA, IDS, FORWARD, BACKWARD)
WARM_UP = 10  # steps that allocate memory and load kernels; half of a run that is shorter than twice as many
KEPT = 500  # the latest steps; on a GPU each holds a dozen events


class StepClock:
    """Times of the latest steps and their parts: by the host's clock, or as a GPU's main stream reaches them.

    torch.profiler, which splits a step more finely, takes a second to start and memory that would count as the run's.

    Args:
        device: The device that steps are computed on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[list[tuple[str, Any, Any]]] = deque(maxlen=KEPT)
        self._taken = 0
        self._begun: Any = None
        self._parts: list[tuple[str, Any, Any]] = []

    def begin_step(self) -> None:
        """Begins a step, which is when the one before it ends."""
        self.end_step()
        self._begun, self._parts = self._now(), []

    def end_step(self) -> None:
        """Ends the step under way, if there is one; what follows until the next begins counts for none."""
        if self._begun is not None:
            self._steps.append([(STEP, self._begun, self._now()), *self._parts])
            self._begun, self._taken = None, self._taken + 1

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Counts the block as a part of the step."""
        begun = self._now()
        yield
        self._parts.append((name, begun, self._now()))

    def medians(self) -> dict[str, float]:
        """Returns the median milliseconds of a step and of its parts after the warm-up; empty without a step."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        warm_up = min(WARM_UP, self._taken // 2) - (self._taken - len(self._steps))
        times = [self._milliseconds(one) for one in [*self._steps][max(0, warm_up) :]]
        return {name: float(np.median([one[name] for one in times])) for name in times[0]} if times else {}

    def _milliseconds(self, step: list[tuple[str, Any, Any]]) -> dict[str, float]:
        times = dict.fromkeys((STEP, *PARTS), 0.0)
        for name, begun, ended in step:
            times[name] += begun.elapsed_time(ended) if self._device.type == "cuda" else 1e3 * (ended - begun)
        return times | {OTHER: times[STEP] - sum(times[name] for name in PARTS)}

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class TimedStep(TrainingStep):
    """A training step with the times of its parts.

    Args:
        session: The run.

    Attributes:
        clock: The times.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.clock = StepClock(session.context.device)

    def take(self, step: int, batches: Iterator[Batch]) -> StepResult:
        """Takes a step on the next batch."""
        self.clock.begin_step()
        return super().take(step, batches)

    def detach(self) -> nn.Module:
        """Ends the step; an evaluation that follows is no part of one."""
        self.clock.end_step()
        return super().detach()

    def enqueue_batch(self, dataloader_iter: Iterator[Batch]) -> bool:
        """Waits for a batch, and begins to copy it to the device."""
        with self.clock.part(DATA):
            return super().enqueue_batch(dataloader_iter)

    def start_sparse_data_dist(self, batch: Batch | None, context: TrainPipelineContext) -> None:
        """Begins to exchange the ids of the next batch."""
        with self.clock.part(IDS):
            super().start_sparse_data_dist(batch, context)

    def wait_sparse_data_dist(self, context: TrainPipelineContext) -> None:
        """Waits for their numbers."""
        with self.clock.part(IDS):
            super().wait_sparse_data_dist(context)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with self.clock.part(FORWARD):
            return super()._forward(batch)

    def _backward(self, losses: Tensor) -> None:
        with self.clock.part(BACKWARD):
            super()._backward(losses)

    def _optimizer_step(self) -> None:
        with self.clock.part(BACKWARD):
            super()._optimizer_step()
