"""The time of a step under a plan: its phases on every rank, and its longest part."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchx_recsys.planner.planned_table import PlannedTable, options_of
from torchx_recsys.planner.problem import DenseWork, Table, Topology
from torchx_recsys.planner.step_costs import MILLISECONDS, PHASES, costs, ring
from torchx_recsys.planner.step_parts import EXCHANGE, FORWARD, OTHER, UPDATE
from torchx_recsys.planner.systems import latency

NAMES = {
    "input": f"{EXCHANGE}: ids",
    "forward": f"{FORWARD}: lookup",
    "forward_comms": f"{EXCHANGE}: embeddings",
    "backward_comms": f"{EXCHANGE}: gradients",
    "backward": f"{UPDATE}: tables",
}
"""Names of the phases. The dense part, which computes in forward and in backward, has a name of its own."""


@dataclass(frozen=True)
class StepPart:
    """A part of a step.

    Attributes:
        name: Its name.
        slowest: Milliseconds of the slowest rank, for which the others wait.
        mean: Milliseconds of a rank on average.
    """

    name: str
    slowest: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The time of a step under a plan, in milliseconds.

    Attributes:
        phases: The phases of tables and exchanges.
        by_rank: Time of each rank in each phase, `[R, phases]`.
        dense: Time of the dense part: its products, the bytes of its operations, the all-reduce of its gradients.
        latency: Time of exchanges, however little is sent.
        constant: Time of everything else.
        source: Source of the speeds, as text to print.
    """

    phases: Sequence[str]
    by_rank: np.ndarray
    dense: float
    latency: float
    constant: float
    source: str

    @property
    def slowest(self) -> np.ndarray:
        """Time of the slowest rank in each phase, `[phases]`: ranks wait for each other in every exchange."""
        return self.by_rank.max(axis=0)

    @property
    def total(self) -> float:
        """Time of the step."""
        return float(self.slowest.sum()) + self.dense + self.latency + self.constant

    @property
    def parts(self) -> list[StepPart]:
        """The parts of the step, which add up to its time."""
        mean = self.by_rank.mean(axis=0)
        phases = [
            StepPart(NAMES[name], float(self.slowest[number]), float(mean[number]))
            for number, name in enumerate(self.phases)
        ]
        rest = {"dense part": self.dense, f"{EXCHANGE}: latency": self.latency, OTHER: self.constant}
        return phases + [StepPart(name, time, time) for name, time in rest.items() if time]

    @property
    def longest(self) -> StepPart:
        """The part that bounds the step."""
        return max(self.parts, key=lambda part: part.slowest)


def step_time(
    planned: Sequence[PlannedTable], tables: Sequence[Table], topology: Topology, dense: DenseWork
) -> StepTime:
    """Returns the time of a step under a plan.

    Args:
        planned: The placement of each table.
        tables: The tables, in the same order.
        topology: The topology of identical ranks.
        dense: Work of the dense part.
    """
    phases = costs(options_of(planned), tables, topology)
    by_rank = np.zeros((topology.ranks, len(PHASES)))
    for table, placed in enumerate(planned):
        np.add.at(by_rank, np.asarray(placed.ranks), phases[table])
    of_dense, of_latency, constant = beside_tables(topology, dense)
    return StepTime(
        phases=PHASES,
        by_rank=by_rank,
        dense=of_dense,
        latency=of_latency,
        constant=constant,
        source=topology.speeds_source,
    )


def beside_tables(topology: Topology, dense: DenseWork) -> tuple[float, float, float]:
    """Returns the milliseconds of a step's dense part, of its exchange latency, and of all else but tables."""
    speeds, system = topology.speeds, topology.system
    products = dense.flops * speeds.flop + dense.batched_flops * speeds.batched_flop
    computed = products + dense.bytes * speeds.dense_byte
    gradients = float(2 * ring(np.array(dense.gradients), topology, speeds, speeds.all_reduce_byte))
    overlaps = system is not None and system.overlaps_gradients
    of_dense = max(computed, gradients) if overlaps else computed + gradients
    of_latency = latency(topology.per_host, topology.hosts) if system else 0.0
    return MILLISECONDS * of_dense, MILLISECONDS * of_latency, MILLISECONDS * speeds.step
