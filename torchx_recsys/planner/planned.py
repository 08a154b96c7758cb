"""A plan for a cluster, with its time and memory, or its shortage of memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchx_recsys.planner.bound import lower_bound
from torchx_recsys.planner.hardware import Cluster
from torchx_recsys.planner.options import CACHED, KERNELS, KINDS
from torchx_recsys.planner.placement import Placement
from torchx_recsys.planner.plan import Problem, find_plan, times_needed, with_bound_of_all
from torchx_recsys.planner.planned_table import PlannedTable, planned_table
from torchx_recsys.planner.problem import Table, Topology
from torchx_recsys.planner.rank_memory import RankMemory
from torchx_recsys.planner.rated import Rated
from torchx_recsys.planner.solve import TRIES, NothingFits, Solution
from torchx_recsys.planner.step_time import StepTime, step_time
from torchx_recsys.planner.systems import SYSTEMS, System


@dataclass(frozen=True)
class Shortage:
    """A shortage of memory.

    Attributes:
        times: Least multiple of every rank's memory that the tables need; 1 if merely no placement was found.
    """

    times: float


@dataclass(frozen=True)
class Planned:
    """A plan for a cluster.

    Attributes:
        problem: The planning problem.
        solution: The placement and the bound; the shortage of memory if nothing fits.
    """

    problem: Problem
    solution: Solution | Shortage

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.problem.cluster

    @property
    def tables(self) -> Sequence[Table]:
        """The tables."""
        return self.problem.tables

    @property
    def topology(self) -> Topology:
        """The topology, with all memory of the ranks."""
        return self.problem.topology

    @property
    def samples(self) -> int:
        """Samples of a step, on all ranks together."""
        return self.topology.batch_size * self.topology.ranks

    @property
    def found(self) -> Solution:
        """The placement and the bound, if the tables fit."""
        assert isinstance(self.solution, Solution)
        return self.solution

    @property
    def fits(self) -> bool:
        """Whether the tables fit."""
        return isinstance(self.solution, Solution)

    @property
    def placed(self) -> list[PlannedTable]:
        """The placement of each table."""
        return [planned_table(self.found, number, table) for number, table in enumerate(self.tables)]

    @cached_property
    def step(self) -> StepTime:
        """The time of a step."""
        return step_time(self.placed, self.tables, self.topology, self.problem.dense.work)

    @property
    def step_of_others(self) -> dict[System, StepTime]:
        """The time of a step under each other system, if the plan is for a system."""
        return {
            SYSTEMS[name]: step_time(self.placed, self.tables, topology, self.problem.dense.work)
            for name, topology in self.problem.of_systems.items()
            if topology.system is not self.topology.system
        }

    @cached_property
    def memory(self) -> RankMemory:
        """The memory of each rank at the peak."""
        return self.problem.peak(self.found)

    @property
    def memory_by_kind(self) -> dict[str, np.ndarray]:
        """Bytes of each rank at the peak by kind, `[R]` each: GPU kinds, such as `GPU: tables`, then host kinds."""
        found = {}
        for number, where in enumerate(("GPU", "host")):
            kinds = {kind: size[:, number] for kind, size in self.memory.by_kind().items() if size[:, number].any()}
            found |= {f"{where}: {kind}": size for kind, size in kinds.items()}
        return found

    @property
    def fullest(self) -> np.ndarray:
        """Bytes of the fullest rank, on the GPU and on the host, `[2]`."""
        return self.memory.total.max(axis=0)


def plan(problem: Problem, tries: int = TRIES) -> Planned:
    """Returns the best plan found, or the shortage of memory.

    Args:
        problem: The planning problem.
        tries: How often the search may repack tables; fewer for a quick answer.
    """
    try:
        return Planned(problem, find_plan(problem, tries))
    except NothingFits as error:
        return Planned(problem, Shortage(times_needed(problem) if error.is_proven else 1.0))


class NotRatedError(ValueError):
    """A table's placement that the planner would never choose, and so cannot rate.

    Attributes:
        table: The placement of the table.
        number: Number of the table.
    """

    def __init__(self, table: PlannedTable, number: int) -> None:
        super().__init__(f"table {number} is placed as the planner would not choose: {table}")
        self.table, self.number = table, number


def rate_plan(problem: Problem, placed: Sequence[PlannedTable]) -> Planned:
    """Rates a plan made elsewhere: returns the plan with this planner's costs and bound.

    Args:
        problem: The planning problem.
        placed: The placement of each table.

    Raises:
        NotRatedError: The planner would never place a table this way.
    """
    placement = Placement(problem.rated, problem.topology, problem.for_shards(), np.zeros(2))
    for number, table in enumerate(placed):
        option = _option(placement.rated, number, table)
        where = np.array(table.ranks)
        if option is None or len(np.unique(where)) < len(where):
            raise NotRatedError(table, number)
        placement.put(number, option, where)
    bound = lower_bound(placement.rated, placement.memory_limit, placement.topology.ranks)
    return Planned(problem, with_bound_of_all(problem, Solution(placement, bound)))


def _option(rated: Rated, number: int, table: PlannedTable) -> int | None:
    options = rated.options
    wanted = KINDS.index(table.kind), KERNELS.index(table.kernel), table.shard_columns
    for option in range(*rated.of_table(number).indices(len(options))):
        same = (options.kind[option], options.kernel[option], options.columns[option]) == wanted
        if same and (wanted[1] != CACHED or np.isclose(options.cached[option], table.cached or 0.0)):
            return option
    return None
