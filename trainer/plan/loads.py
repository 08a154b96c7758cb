"""What a plan gives each rank to do and to hold: the parts of a step, bytes by kind."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.plan.fitting import Problem, least_cost
from trainer.plan.planned import Planned
from trainer.plan.search.systems import SYSTEMS, System
from trainer.plan.step_time import StepTime, beside_tables, step_time

ROUNDING = 1e-9  # of sums in another order

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
    return step_time(planned.placed, planned.tables, planned.ranks, planned.dense)


def step_of_others(planned: Planned) -> dict[System, StepTime]:
    """Returns the time of a step of the other systems, where the plan is forecast for one."""
    problem = planned.problem
    return {
        system: step_time(planned.placed, planned.tables, problem.ranks_for(name), planned.dense)
        for name, system in SYSTEMS.items()
        if planned.ranks.system and system is not planned.ranks.system
    }


def least_milliseconds(problem: Problem) -> float:
    """Returns the time that a step takes at least under any plan, as is proven; infinite where no plan fits."""
    beside = sum(beside_tables(problem.ranks, problem.dense))
    return (least_cost(problem) + beside) * (1 - ROUNDING)


def parts_of(step: StepTime) -> list[Part]:
    """Returns the parts of a step, which add up to its time."""
    mean = step.by_rank.mean(axis=0)
    phases = [
        Part(WORDS[name], float(step.slowest[number]), float(mean[number])) for number, name in enumerate(step.phases)
    ]
    rest = {"dense part": step.dense, "latency of exchanges": step.latency, "anything else": step.constant}
    return phases + [Part(name, time, time) for name, time in rest.items() if time]


def bound_by(parts: Sequence[Part]) -> Part:
    """Returns the longest part."""
    return max(parts, key=lambda part: part.slowest)


def memory_of_ranks(planned: Planned) -> dict[str, np.ndarray]:
    """Returns the bytes at the peak of each rank by kind, `[R]` each, of a GPU's memory, then of the host's."""
    found = {}
    for number, where in enumerate(("GPU", "host")):
        kinds = {kind: size[:, number] for kind, size in planned.memory.by_kind().items() if size[:, number].any()}
        found |= {f"{where}: {kind}": size for kind, size in kinds.items()}
    return found
