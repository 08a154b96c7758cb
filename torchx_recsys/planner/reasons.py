"""Explains a plan: a table's placement by the costs of its alternatives, and memory in words."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torchx_recsys.planner.hardware import GIB
from torchx_recsys.planner.placement import Placement
from torchx_recsys.planner.plan import Problem
from torchx_recsys.planner.rank_memory import RankMemory
from torchx_recsys.planner.search import Solution
from torchx_recsys.planner.tables import CACHED, KERNELS, KINDS

WITHOUT_TABLES = "the model has no tables; every rank holds all of it"


@dataclass(frozen=True)
class Alternative:
    """Another way to shard a table.

    Attributes:
        placement: Sharding type, kernel and shards.
        milliseconds: Its time in a step, a mean over the ranks.
        memory_gib: Its memory on the GPU and on the host, a mean over the ranks.
        reason: Why it was not chosen.
    """

    placement: str
    milliseconds: float
    memory_gib: tuple[float, float]
    reason: str


def named_option(solution: Solution, option: int) -> str:
    """Returns sharding type, kernel and shards of an option, such as `column_wise fused 4x32`."""
    options = solution.placement.rated.options
    name = f"{KINDS[options.kind[option]]} {KERNELS[options.kernel[option]]}"
    if options.kernel[option] == CACHED:
        name += f" {options.cached[option]:.0%}"
    return name + (f" {options.pieces[option]}x{options.columns[option]}" if options.pieces[option] > 1 else "")


def step_milliseconds(solution: Solution, option: int) -> float:
    """Returns an option's time in a step, a mean over the ranks."""
    return float(solution.placement.rated.total_cost[option]) / solution.placement.topology.ranks


def memory_gib(solution: Solution, option: int) -> tuple[float, float]:
    """Returns an option's memory on the GPU and on the host, a mean over the ranks."""
    gpu, host = solution.placement.rated.total_memory[option] / solution.placement.topology.ranks / GIB
    return float(gpu), float(host)


def alternatives(solution: Solution, table: int) -> list[Alternative]:
    """Returns a table's best option of each other sharding type and kernel, best first.

    Best is the least time plus priced memory; the price is the milliseconds of a step that a byte saves elsewhere.
    """
    rated, chosen = solution.placement.rated, int(solution.placement.option[table])
    reduced = rated.total_cost + rated.total_memory @ solution.bound.prices
    best: dict[tuple[int, int], int] = {}
    options = rated.options
    for option in sorted(range(*rated.of_table(table).indices(len(options))), key=lambda one: reduced[one]):
        best.setdefault((int(options.kind[option]), int(options.kernel[option])), option)
    best.pop((int(options.kind[chosen]), int(options.kernel[chosen])), None)
    return [
        Alternative(
            named_option(solution, option),
            step_milliseconds(solution, option),
            memory_gib(solution, option),
            _reason(solution, chosen, option),
        )
        for option in best.values()
    ]


def _reason(solution: Solution, chosen: int, option: int) -> str:
    placement = solution.placement
    rated, prices = placement.rated, solution.bound.prices
    for kind, limit in enumerate(placement.memory_limit):
        if rated.memory[option, kind] > limit:
            where = ("GPU", "host")[kind]
            size = in_words(rated.memory[option, kind])
            return f"a shard takes {size}, more than a rank's {where} memory for tables, {in_words(limit)}"
    if rated.cost[option] > placement.cost:
        return f"a shard takes {rated.cost[option]:.3g} ms, longer than the slowest rank's {placement.cost:.3g}"
    slower = step_milliseconds(solution, option) - step_milliseconds(solution, chosen)
    more = (rated.total_memory[option] - rated.total_memory[chosen]) / placement.topology.ranks
    worth = float(more @ prices)
    if slower >= 0:
        return f"{slower:.3g} ms slower, {_gib(more)}"
    if worth > -slower:
        return f"{-slower:.3g} ms faster, but {_gib(more)}, worth {worth:.3g} ms elsewhere"
    if _has_room(placement, int(rated.options.table[option]), option):
        return f"{-slower:.3g} ms faster on average, but the slowest rank would not be"
    return f"{-slower:.3g} ms faster on average, but beside the other tables the slowest rank would be slower"


def _has_room(placement: Placement, table: int, option: int) -> bool:
    """Returns whether a table fits as an option, with no other table moved and no slower slowest rank."""
    limit = placement.cost
    chosen, where = placement.take(table)
    found = placement.find(option, limit)
    placement.put(table, chosen, where)
    return found is not None


def _gib(more: np.ndarray) -> str:
    """Returns a difference of memory in words."""

    def words() -> Iterator[str]:
        for size, where in zip(more, ("GPU", "host"), strict=True):
            if size:
                yield f"{in_words(abs(size))} {'more' if size > 0 else 'less'} {where} memory"

    return " and ".join(words()) or "the same memory"


def in_words(size: float) -> str:
    """Returns a number of bytes with a suitable unit."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 2**10:.3g} KiB"


def lack_for_copy(memory: RankMemory, problem: Problem) -> str:
    """Describes the host memory that a save's copy of the state lacks; empty if there is enough."""
    kept = memory.tables + memory.state + memory.averages + memory.dense + memory.id_maps
    most, there = (memory.total[:, 1] + kept.sum(axis=1)).max(), problem.topology.host_bytes
    if not problem.copies or most <= there:
        return ""
    # What is on GPUs is always copied: DCP moves it to the host, and keeps it there until the save ends.
    way_out = (
        "use more ranks, or hosts with more memory"
        if problem.topology.on_gpu
        else "checkpoint.asynchronous = false and checkpoint.full_every = 1 write it without a copy"
    )
    return (
        f"a save copies the state, with which a rank takes up to {most / GIB:.3g} of {there / GIB:.4g} GiB of host "
        f"memory; {way_out}"
    )


def takes(beside: dict[str, float]) -> str:
    """Describes the memory beside shards in words."""
    return ", ".join(f"{in_words(size)} for {name}" for name, size in beside.items() if size > 0)
