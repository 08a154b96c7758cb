"""The clock of a step: the time of its parts, and the peak memory, for `measured` in run.json."""

import resource
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from torchx_recsys.planner.hardware import GIB
from torchx_recsys.planner.step_time import OTHER, PARTS
from trainer.core.distributed import DistributedContext, gather_to_all

TIMED = [part for part in PARTS if part != OTHER]  # which is the rest of a step

STEP = "step"
WARM_UP = 10  # steps that allocate memory and load kernels; half of a run that is shorter than twice as many
KEPT = 500  # the latest steps; on a GPU each holds a dozen events


class StepClock:
    """Times of the latest steps and their parts: by the host's clock, or as a GPU's main stream reaches them.

    torch.profiler, which splits a step more finely, takes a second to start and memory that would count as the run's.

    Args:
        device: The device that steps are computed on.

    Attributes:
        now: Returns the time: seconds, or an event of the GPU.
        parts: The parts of the step under way: the name, begin and end of each.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Looked up once: torch would look for the device and its driver each time, 0.4 of 4.3 ms in a small step.
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.now: Callable[[], Any] = time.perf_counter if self._stream is None else self._event
        self.parts: list[tuple[str, Any, Any]] = []
        self._parts = {name: _Part(self, name) for name in TIMED}
        self._steps: deque[list[tuple[str, Any, Any]]] = deque(maxlen=KEPT)
        self._taken = 0
        self._begun: Any = None

    def begin_step(self) -> None:
        """Ends the step before and begins a step."""
        self.end_step()
        self._begun, self.parts = self.now(), []

    def end_step(self) -> None:
        """Ends the step under way, if there is one; the time until the next step begins counts for no step."""
        if self._begun is not None:
            self._steps.append([(STEP, self._begun, self.now()), *self.parts])
            self._begun, self._taken = None, self._taken + 1

    def part(self, name: str) -> AbstractContextManager[None]:
        """Returns a block that counts as a part of the step, and has its name in traces."""
        return self._parts[name]

    def measured(self, context: DistributedContext) -> dict[str, Any]:
        """Returns the facts `measured` of run.json, from all ranks; nothing if no step was taken. All ranks call it."""
        times, memory = zip(*gather_to_all((self._medians(), peak_bytes(context)), context), strict=True)
        if not times[0]:
            return {}
        slowest = max(times, key=lambda of_rank: of_rank[STEP])
        parts = {name: slowest[name] for name in PARTS}
        return {"step_ms": slowest[STEP], "parts": parts, "memory_bytes": [*memory]}

    def _medians(self) -> dict[str, float]:
        """Returns the median milliseconds of a step and of its parts after the warm-up; empty without a step."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        warm_up = min(WARM_UP, self._taken // 2) - (self._taken - len(self._steps))
        times = [self._milliseconds(step) for step in [*self._steps][max(0, warm_up) :]]
        return {name: float(np.median([step[name] for step in times])) for name in times[0]} if times else {}

    def _milliseconds(self, step: list[tuple[str, Any, Any]]) -> dict[str, float]:
        times = dict.fromkeys((STEP, *TIMED), 0.0)
        for name, begun, ended in step:
            times[name] += begun.elapsed_time(ended) if self._device.type == "cuda" else 1e3 * (ended - begun)
        return times | {OTHER: times[STEP] - sum(times[name] for name in TIMED)}

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event


class _Part(AbstractContextManager[None]):
    """A block that adds its time to a clock's. Made once for all steps, as its making takes longer than its clock."""

    def __init__(self, clock: StepClock, name: str) -> None:
        self._clock, self._name, self._range = clock, name, named_range(name)
        self._begun: Any = None

    def __enter__(self) -> None:
        self._begun = self._clock.now()
        self._range.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._range.__exit__(*raised)
        self._clock.parts.append((self._name, self._begun, self._clock.now()))


def in_words(measured: dict[str, Any]) -> str:
    """Returns what was measured as a line of the console."""
    fullest = max(measured["memory_bytes"]) / GIB
    return f"step {measured['step_ms']:.3g} ms; memory {fullest:.3g} GiB of the fullest rank"


def peak_bytes(context: DistributedContext) -> int:
    """Returns this rank's peak memory so far: what a GPU's allocator reserved, or the process's without a GPU."""
    if context.device.type == "cuda":
        return torch.cuda.max_memory_reserved()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@cache
def named_range(name: str) -> record_function:
    """Names the block in traces. A range of a name is made once, and must not be within itself."""
    return record_function(f"## {name} ##")


_enter_recorded, _exit_recorded = record_function.__enter__, record_function.__exit__


def skip_unrecorded_ranges() -> None:
    """Makes torch skip named ranges while no trace is recorded.

    torch tells C++ of each of them, and TorchRec names two dozen in a step: on one rank a sixth of a step of a small
    model (MovieLens, DeepFM, batches of 1,024: 2.96, 2.72 and 4.57 ms, without them 2.56, 2.43 and 3.33).
    """
    record_function.__enter__, record_function.__exit__ = _enter, _exit


def _enter(self: record_function) -> record_function:
    if torch.autograd.profiler._is_profiler_enabled:
        return _enter_recorded(self)
    self.record = None  # of an earlier use of the same object
    return self


def _exit(self: record_function, exc_type: Any, exc_value: Any, traceback: Any) -> None:
    if self.record is not None:
        _exit_recorded(self, exc_type, exc_value, traceback)
