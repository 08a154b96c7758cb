"""What a plan gives each rank to do and to hold: milliseconds by phase, bytes by kind."""

from dataclasses import dataclass

import numpy as np

from trainer.plan.planned import Planned
from trainer.plan.search.placement import Placement
from trainer.plan.search.torchrec_costs import PHASES


@dataclass(frozen=True)
class Step:
    """The time of a step, by rank and phase.

    Attributes:
        phases: Names of the phases.
        of_ranks: Milliseconds, `[R, P]`.
        source: Where the figures come from.
    """

    phases: tuple[str, ...]
    of_ranks: np.ndarray
    source: str

    @property
    def slowest(self) -> int:
        """The slowest rank."""
        return int(self.of_ranks.sum(axis=1).argmax())

    @property
    def milliseconds(self) -> float:
        """The time of the slowest rank."""
        return float(self.of_ranks.sum(axis=1).max())

    @property
    def bound_by(self) -> str:
        """The phase in which the slowest rank is the longest."""
        return self.phases[int(self.of_ranks[self.slowest].argmax())]


def step_of(planned: Planned) -> Step:
    """Returns the time of a step."""
    host = planned.cluster.host
    sheet = f"data sheets of {planned.cluster.name} ({host.source})" if host else "TorchRec's defaults"
    return Step(PHASES, _phases(planned.found.placement), f"{sheet}, by TorchRec's formulas; not measured")


def _phases(placement: Placement) -> np.ndarray:
    found = np.zeros((placement.ranks.number, placement.rated.phases.shape[1]))
    for option, where in zip(placement.option, placement.where, strict=True):
        found[where] += placement.rated.phases[option]
    return found


def memory_of_ranks(planned: Planned) -> dict[str, np.ndarray]:
    """Returns the bytes on each rank by kind, `[R]` each, the kinds of GPU memory first."""
    memory = planned.found.placement.memory
    on_host = {"host: tables, state, buffers": memory[:, 1]}
    return {"GPU: tables, state, buffers": memory[:, 0], **on_host} if planned.ranks.on_gpu else on_host
