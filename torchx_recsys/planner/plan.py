"""Plans that fit: the room for shards in a rank's memory, the search within this room, and the shortage of memory.

The search adds up the memory of shards, but phases of a step peak one after the other. So the search first counts each
shard's most in any phase: such a plan always fits. If no such plan is found, the search counts one phase at a time,
which may accept plans that need too much, and takes a plan whose forecast peak fits. The last resort is the plan with
the least memory, if that plan fits. If a single phase has no room, it is proven that no plan fits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from torchx_recsys.planner.hardware import Cluster
from torchx_recsys.planner.lower_bound import Rated, allowed_under, lower_bound, rate, relax
from torchx_recsys.planner.placement import Placement
from torchx_recsys.planner.rank_memory import (
    RankMemory,
    Shards,
    beside_shards,
    id_map_bytes,
    memory_of,
    room_for_shards,
    shards_of_tables,
)
from torchx_recsys.planner.search import TRIES, NothingFits, Solution, planned_table, solve_within
from torchx_recsys.planner.shard_memory import PHASES, memory_by_kind, memory_in_phase
from torchx_recsys.planner.step_time import StepTime, beside_tables, step_time
from torchx_recsys.planner.tables import CACHED, KERNELS, KINDS, DensePart, PlannedTable, Table
from torchx_recsys.planner.topology import SYSTEMS, System, Topology

MOST_TIMES = 2**20  # multiple of the memory beyond which more memory does not help
BISECTIONS = 30
NARROWER = 5  # how often a phase's room is cut by the shortage of other phases
AT_ANY_COST = 100.0  # how much slower the leanest plan may be, relative
ROUNDING = 1e-9  # relative rounding error of sums in another order


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A planning problem: tables, ranks, and the memory for them.

    Attributes:
        cluster: The cluster to plan for.
        tables: The tables.
        topology: The topology, with all memory of the ranks.
        measure_dense: Returns the dense part of the model. Called only on demand, as measuring takes seconds.
        reserve: The part of the device's memory to keep free.
        slower: How much slower than the fastest plan found the plan may be, relative, to save memory.
        of_systems: The topology with each system's speeds, by system name; empty if none is forecast.
        copies: Whether a save copies the state of a rank to its host's memory.
    """

    cluster: Cluster
    tables: Sequence[Table]
    topology: Topology
    measure_dense: Callable[[], DensePart]
    reserve: float
    slower: float = 0.0
    of_systems: Mapping[str, Topology] = field(default_factory=dict)
    copies: bool = False

    @cached_property
    def dense(self) -> DensePart:
        """The dense part of the model."""
        return self.measure_dense()

    @property
    def device(self) -> int:
        """Index of the memory that ranks compute in: 0 for GPU, 1 for host."""
        return 0 if self.topology.on_gpu else 1

    @property
    def there(self) -> np.ndarray:
        """Bytes of a rank, on the GPU and on the host, `[2]`."""
        return np.array([self.topology.gpu_bytes, self.topology.host_bytes], dtype=float)

    @property
    def usable(self) -> np.ndarray:
        """Bytes of a rank without the reserve, `[2]`."""
        found = self.there
        found[self.device] *= 1 - self.reserve
        return found

    def for_shards(self, phase: str | None = None, times: float = 1.0) -> np.ndarray:
        """Returns the bytes of a rank that shards may take, `[2]`; negative if there is no room.

        Args:
            phase: The phase of a step to count; unset for all phases.
            times: Multiple of the memory that a rank has.
        """
        found = times * self.usable
        capacity = found[self.device]
        found[self.device] = room_for_shards(capacity, self.tables, self.topology, self.dense.memory, phase=phase)
        if self.topology.on_gpu:  # on a host that computes they are in the room
            found[1] -= id_map_bytes(self.tables, self.topology)
        return found

    def beside_shards(self) -> dict[str, float]:
        """Returns the bytes of a rank's device that shards cannot take, by name."""
        reserved = (self.there - self.usable)[self.device]
        return beside_shards(self.tables, self.topology, self.dense.memory) | {"planner.reserve": reserved}

    @cached_property
    def rated(self) -> Rated:
        """The options of the tables."""
        return rate(self.tables, self.topology)

    @cached_property
    def by_phase(self) -> dict[str, Rated]:
        """The options with the least memory that they need in each phase."""
        return {phase: rate(self.tables, self.topology, partial(memory_in_phase, phase)) for phase in PHASES}

    def peak(self, solution: Solution) -> RankMemory:
        """Returns the memory of each rank at the peak, under a solution."""
        planned = [planned_table(solution, number, table) for number, table in enumerate(self.tables)]
        return self.memory_of(shards_of_tables(planned))

    def memory_of(self, shards: Shards) -> RankMemory:
        """Returns the memory of each rank at the peak, under a plan with these shards."""
        return memory_of(shards, self.tables, self.topology, self.dense.memory)

    def kept_by_shard(self, solution: Solution) -> np.ndarray:
        """Returns the bytes of the weights, state and averages of each table's largest shard, `[T, 2]`."""
        kinds = memory_by_kind(self.rated.options, self.tables, self.topology)
        return (kinds["tables"] + kinds["state"] + kinds["averages"])[solution.placement.option]


def find_plan(problem: Problem, tries: int = TRIES) -> Solution:
    """Returns the best plan found that fits.

    Args:
        problem: The planning problem.
        tries: How often the search may repack tables; fewer for a quick answer.

    Raises:
        NothingFits: No plan fits, or none was found.
    """
    try:
        found = solve_within(problem.rated, problem.topology, problem.for_shards(), problem.slower, tries)
    except NothingFits:
        found = _fitting_in_phases(problem, tries)
    return with_bound_of_all(problem, found)


def _fitting_in_phases(problem: Problem, tries: int) -> Solution:
    """Returns the fastest of the plans that fit and that are found by counting a single phase.

    Raises:
        NothingFits: No plan fits, or none was found.
    """
    if not np.isfinite(least_cost(problem)):
        raise NothingFits(is_proven=True)
    found = [_fitting_in_phase(problem, phase, tries) for phase in problem.by_phase]
    fitting = [one for one in found if one is not None]
    if fitting:
        return min(fitting, key=lambda one: one.placement.cost)
    return _leanest(problem, tries)


def _leanest(problem: Problem, tries: int) -> Solution:
    """Returns the plan with the least memory, if the plan fits.

    Raises:
        NothingFits: The plan does not fit.
    """
    # A tight limit misleads the search: with plenty of memory, it found plans that take less than the tight limit.
    memory = problem.for_shards()
    memory[problem.device] = MOST_TIMES * problem.there[problem.device]
    try:
        found = solve_within(problem.rated, problem.topology, memory, AT_ANY_COST, tries)
    except NothingFits as error:
        raise NothingFits(is_proven=False) from error
    if not (problem.peak(found).total <= problem.usable).all():
        raise NothingFits(is_proven=False)
    return found


def _fitting_in_phase(problem: Problem, phase: str, tries: int) -> Solution | None:
    """Returns a plan that fits, found by counting one phase with less and less room; None if none is found."""
    room = problem.for_shards(phase)
    for _ in range(NARROWER):
        try:
            found = solve_within(problem.by_phase[phase], problem.topology, room.copy(), problem.slower, tries)
        except NothingFits:
            return None
        beyond = (problem.peak(found).total - problem.usable).max(axis=0)
        if (beyond <= 0).all():
            return found
        room -= np.maximum(beyond, 0)
    return None


def with_bound_of_all(problem: Problem, found: Solution) -> Solution:
    """Returns a solution with the bound of all plans that fit, even of plans that fit only in phases."""
    is_plenty = (problem.rated.memory <= problem.for_shards()).all() and not found.bound.prices.any()
    if is_plenty:
        return found
    return replace(found, bound=replace(found.bound, cost=least_cost(problem)))


def least_cost(problem: Problem) -> float:
    """Returns the least milliseconds of the slowest rank under any plan that fits; infinite if none fits."""
    number = problem.topology.ranks
    return max(lower_bound(rated, problem.for_shards(phase), number).cost for phase, rated in problem.by_phase.items())


def least_milliseconds(problem: Problem) -> float:
    """Returns the proven least milliseconds of a step under any plan; infinite if no plan fits."""
    beside = sum(beside_tables(problem.topology, problem.dense.work))
    return (least_cost(problem) + beside) * (1 - ROUNDING)


def times_needed(problem: Problem) -> float:
    """Returns the least multiple of its memory that every rank needs; infinite if none helps."""
    low, high = 1.0, 2.0
    while not _may_fit(problem, high):
        low, high = high, 2 * high
        if high > MOST_TIMES:
            return np.inf
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _may_fit(problem, middle) else (middle, high)
    return high


def _may_fit(problem: Problem, times: float) -> bool:
    return all(
        _may_take(rated, problem.for_shards(phase, times), problem.topology.ranks)
        for phase, rated in problem.by_phase.items()
    )


def _may_take(rated: Rated, memory: np.ndarray, ranks: int) -> bool:
    return bool(np.isfinite(relax(rated, allowed_under(rated, np.inf, memory), memory * ranks).cost))


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
