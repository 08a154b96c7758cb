"""Plans that fit: what shards may take of a rank's memory, the search under it, and what is missing where nothing fits.

The search adds up what shards take, but phases of a step peak one after the other. So it counts the most of each shard
in any phase first: such a plan fits in any case. Where it finds none, it counts one phase at a time, under which too
much may pass, and takes a plan whose predicted peak fits; at last the plan that takes the least memory, if it fits.
Where a phase alone has no room, it is proven that none fits.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from torch import nn
from torchrec.distributed.types import ShardingPlan

from trainer.config.plan import PlannerConfig
from trainer.config.root import Config
from trainer.plan.activations import dense_work
from trainer.plan.allowed_types import with_allowed_types
from trainer.plan.cluster import Cluster
from trainer.plan.dense_work import DenseWork
from trainer.plan.memory import in_words
from trainer.plan.memory_model import RankMemory, beside_shards, memory_of, room_for_shards
from trainer.plan.ranks import ranks_to_plan_for
from trainer.plan.search.bound import allowed_under, lower_bound, relax
from trainer.plan.search.problem import Ranks, Table
from trainer.plan.search.rated import Rated, rate
from trainer.plan.search.shard_memory import PHASES, memory_by_kind, memory_in_phase
from trainer.plan.search.solve import TRIES, NothingFits, Solution, solve_within
from trainer.plan.tables import check_options, tables_to_plan

RESERVE, RESERVE_OF_TORCHREC = 0.05, 0.15
MOST_TIMES = 2**20  # the memory that there is, after which no memory helps
BISECTIONS = 30
NARROWER = 5  # times that a phase gets the less memory the more the others lack
AT_ANY_COST = 100.0  # how much slower a plan may be that takes little memory, relative


@dataclass(frozen=True)
class Problem:
    """What is to be planned, and the memory that there is for it.

    Attributes:
        config: The configuration.
        planner: Its planner's section, without the sharding types that tables cannot have.
        cluster: The cluster.
        tables: The tables.
        ranks: The ranks, with all of their memory.
    """

    config: Config
    planner: PlannerConfig
    cluster: Cluster
    tables: list[Table]
    ranks: Ranks

    @property
    def dense(self) -> DenseWork | None:
        """What the dense part does in a step; None where its time is not counted."""
        return dense_work(self.config, self.ranks.number) if self.ranks.speeds else None

    @property
    def counts_all(self) -> bool:
        """Whether all memory is predicted; TorchRec's planner and estimate count tables, and reserve the rest."""
        return self.planner.engine == "search" and self.ranks.speeds is not None

    @property
    def device(self) -> int:
        """The kind of memory that ranks compute in: 0 for a GPU's, 1 for the host's."""
        return 0 if self.ranks.on_gpu else 1

    @property
    def there(self) -> np.ndarray:
        """Bytes of a rank, on the GPU and on the host, `[2]`."""
        return np.array([self.ranks.gpu_bytes, self.ranks.host_bytes], dtype=float)

    @property
    def reserve(self) -> float:
        """The part of the device's memory to keep free."""
        if self.planner.reserve is not None:
            return self.planner.reserve
        return RESERVE if self.counts_all else RESERVE_OF_TORCHREC

    @property
    def usable(self) -> np.ndarray:
        """Bytes of a rank without those to keep free, `[2]`."""
        found = self.there
        found[self.device] *= 1 - self.reserve
        return found

    def for_shards(self, phase: str | None = None, times: float = 1.0) -> np.ndarray:
        """Returns the bytes of a rank that shards may take, `[2]`; negative where there are none.

        Args:
            phase: The phase of a step that is counted; unset for all of them.
            times: How many times its memory a rank has.
        """
        found = times * self.usable
        if self.counts_all:
            capacity = found[self.device]
            found[self.device] = room_for_shards(capacity, self.tables, self.ranks, self.config, phase=phase)
        return found

    def beside_shards(self) -> dict[str, float]:
        """Returns the bytes of a rank's device that shards cannot have, by name."""
        reserved = (self.there - self.usable)[self.device]
        beside = beside_shards(self.tables, self.ranks, self.config) if self.counts_all else {}
        return beside | {"planner.reserve": reserved}

    @cached_property
    def rated(self) -> Rated:
        """The options of the tables.

        Raises:
            InputError: A table has none.
        """
        return self._rate()

    @cached_property
    def by_phase(self) -> dict[str | None, Rated]:
        """The options with the least memory that they need, in each phase that is counted."""
        if not self.counts_all:
            return {None: self.rated}
        return {phase: self._rate(partial(memory_in_phase, phase)) for phase in PHASES}

    def _rate(self, memory_of_shard: Callable[..., np.ndarray] | None = None) -> Rated:
        check_options(self.tables, self.ranks)
        return rate(self.tables, self.ranks, memory_of_shard)

    def ranks_for_shards(self) -> Ranks:
        """Returns the ranks with the memory that shards may take."""
        gpu, host = self.for_shards()
        return replace(self.ranks, gpu_bytes=int(gpu), host_bytes=int(host))

    def ranks_for(self, system: str) -> Ranks:
        """Returns the ranks with the speeds of a system, by its name in planner.system."""
        planner = self.planner.model_copy(update={"system": system})
        return _ranks(self.config, planner, self.cluster)

    def peak(self, plan: Solution | ShardingPlan) -> RankMemory:
        """Returns the predicted peak of each rank."""
        return memory_of(plan, self.tables, self.ranks, self.config)

    def kept_by_shard(self, solution: Solution) -> np.ndarray:
        """Returns the bytes of the weights, state and averages of each table's largest shard, `[T, 2]`."""
        kinds = memory_by_kind(self.rated.options, self.tables, self.ranks)
        return (kinds["tables"] + kinds["state"] + kinds["averages"])[solution.placement.option]


def problem_of(model: nn.Module, config: Config, cluster: Cluster) -> Problem:
    """Returns what is to be planned of a model for a cluster that need not be there.

    Raises:
        InputError: The configuration asks for a sharding type that a table cannot have.
    """
    planner = with_allowed_types(config)
    tables = tables_to_plan(model, config, planner)
    return Problem(config, planner, cluster, tables, _ranks(config, planner, cluster))


def _ranks(config: Config, planner: PlannerConfig, cluster: Cluster) -> Ranks:
    shape = cluster.ranks, cluster.per_host, cluster.device_type
    return ranks_to_plan_for(config.data, planner, config.comms, config.train, *shape)


def find_plan(problem: Problem, tries: int = TRIES) -> Solution:
    """Returns the best plan found that fits.

    Args:
        problem: What is to be planned.
        tries: How often the search may pack tables anew; fewer for a quick answer.

    Raises:
        NothingFits: There is none, or none was found.
    """
    slower = problem.planner.slower_for_memory
    try:
        found = solve_within(problem.rated, problem.ranks, problem.for_shards(), slower, tries)
    except NothingFits:
        if not problem.counts_all:
            raise
        found = _fitting_in_phases(problem, slower, tries)
    return with_bound_of_all(problem, found)


def _fitting_in_phases(problem: Problem, slower: float, tries: int) -> Solution:
    """Returns the fastest plan that fits, of those found where one phase alone is counted.

    Raises:
        NothingFits: There is none, or none was found.
    """
    if not np.isfinite(least_cost(problem)):
        raise NothingFits(is_proven=True)
    found = [_fitting_in_phase(problem, phase, slower, tries) for phase in problem.by_phase]
    fitting = [one for one in found if one is not None]
    if fitting:
        return min(fitting, key=lambda one: one.placement.cost)
    return _leanest(problem, tries)


def _leanest(problem: Problem, tries: int) -> Solution:
    """Returns the plan that takes the least memory, if it fits.

    Raises:
        NothingFits: It does not.
    """
    # A limit that leaves little room leads the search astray: with plenty, it found plans that take less than that.
    memory = problem.for_shards()
    memory[problem.device] = MOST_TIMES * problem.there[problem.device]
    try:
        found = solve_within(problem.rated, problem.ranks, memory, AT_ANY_COST, tries)
    except NothingFits as error:
        raise NothingFits(is_proven=False) from error
    if not (problem.peak(found).total <= problem.usable).all():
        raise NothingFits(is_proven=False)
    return found


def _fitting_in_phase(problem: Problem, phase: str | None, slower: float, tries: int) -> Solution | None:
    """Returns a plan that fits, of which other phases have what counting one of them leaves; None if none is found."""
    room = problem.for_shards(phase)
    for _ in range(NARROWER):
        try:
            found = solve_within(problem.by_phase[phase], problem.ranks, room.copy(), slower, tries)
        except NothingFits:
            return None
        beyond = (problem.peak(found).total - problem.usable).max(axis=0)
        if (beyond <= 0).all():
            return found
        room -= np.maximum(beyond, 0)
    return None


def with_bound_of_all(problem: Problem, found: Solution) -> Solution:
    """Returns a solution with the bound of all plans that fit, also of those that fit in phases only."""
    is_plenty = (problem.rated.memory <= problem.for_shards()).all() and not found.bound.prices.any()
    if is_plenty:
        return found
    return replace(found, bound=replace(found.bound, cost=least_cost(problem)))


def least_cost(problem: Problem) -> float:
    """Returns the milliseconds of the slowest rank that no plan that fits is below; infinite where none fits."""
    number = problem.ranks.number
    return max(lower_bound(rated, problem.for_shards(phase), number).cost for phase, rated in problem.by_phase.items())


def times_needed(problem: Problem) -> float:
    """Returns how many times its memory every rank needs at least; infinite if no memory helps."""
    low, high = 1.0, 2.0
    while not _may_fit(problem, high):
        low, high = high, 2 * high
        if high > MOST_TIMES:
            return np.inf
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _may_fit(problem, middle) else (middle, high)
    return high


def takes(beside: dict[str, float]) -> str:
    """Returns what takes memory beside shards, in words."""
    return ", ".join(f"{in_words(size)} for {name}" for name, size in beside.items() if size > 0)


def _may_fit(problem: Problem, times: float) -> bool:
    return all(
        _may_take(rated, problem.for_shards(phase, times), problem.ranks.number)
        for phase, rated in problem.by_phase.items()
    )


def _may_take(rated: Rated, memory: np.ndarray, ranks: int) -> bool:
    return bool(np.isfinite(relax(rated, allowed_under(rated, np.inf, memory), memory * ranks).cost))
