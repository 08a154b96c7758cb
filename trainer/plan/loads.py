"""What a plan gives each rank to do and to hold: the parts of a step, bytes by kind."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.plan.planned import Planned
from trainer.plan.step_time import StepTime, step_time

WORDS = {
    "input": "exchange of ids",
    "forward": "lookup",
    "forward_comms": "exchange of embeddings",
    "backward_comms": "exchange of gradients",
    "backward": "update of tables",
}
"""Phases in words."""


@dataclass(frozen=True)
class Part:
    """A part of a step.

    Attributes:
        name: Its name.
        slowest: Milliseconds of the slowest rank, for which the others wait.
        mean: Milliseconds of a rank on average.
    """

    name: str
    slowest: float
    mean: float


def step_of(planned: Planned) -> StepTime:
    """Returns the time of a step."""
    return step_time(planned.placed, planned.tables, planned.ranks, planned.dense_weights)


def parts_of(step: StepTime) -> list[Part]:
    """Returns the parts of a step, which add up to its time."""
    mean = step.by_rank.mean(axis=0)
    phases = [
        Part(WORDS[name], float(step.slowest[number]), float(mean[number])) for number, name in enumerate(step.phases)
    ]
    rest = {"dense part": step.dense, "anything else": step.constant}
    return phases + [Part(name, time, time) for name, time in rest.items() if time]


def bound_by(parts: Sequence[Part]) -> Part:
    """Returns the longest part."""
    return max(parts, key=lambda part: part.slowest)


def memory_of_ranks(planned: Planned) -> dict[str, np.ndarray]:
    """Returns the bytes on each rank by kind, `[R]` each, the kinds of GPU memory first."""
    memory = planned.found.placement.memory
    on_host = {"host: tables, state, buffers": memory[:, 1]}
    return {"GPU: tables, state, buffers": memory[:, 0], **on_host} if planned.ranks.on_gpu else on_host
