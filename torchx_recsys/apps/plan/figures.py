"""The figures of a plan: ranks, parts of a step, tables, and a comparison of clusters."""

from collections.abc import Iterator, Sequence

import numpy as np

from torchx_recsys.apps.plan.text import samples_per_second
from torchx_recsys.planner.hardware import GIB
from torchx_recsys.planner.plan import Planned
from torchx_recsys.planner.reasons import step_milliseconds
from torchx_recsys.planner.step_time import sent_by_hosts
from trainer.pages.figures import Figure, Lying, Stacked

NAMED = 8  # maximum number of tables with their own color
HEAVIEST = 15
MOST_LYING = 16  # maximum number of hosts with a line each
REST = "all other tables"
BESIDE = "batches, dense part, process"


def best_of(planned: Sequence[Planned]) -> Planned:
    """Returns the fastest plan that fits."""
    return min((one for one in planned if one.fits), key=lambda one: one.step.total)


def figures_of(planned: Sequence[Planned]) -> list[Figure]:
    """Returns the figures of the fastest plan that fits, after a comparison if there are several clusters."""
    best = best_of(planned)
    figures = [*(_compared(planned) if len(planned) > 1 else ()), *_ranks(best), *_parts(best)]
    return [*figures, _between_hosts(best)] if best.topology.hosts > 1 else figures


def _compared(planned: Sequence[Planned]) -> Iterator[Figure]:
    fitting = sorted((one for one in planned if one.fits), key=lambda one: one.step.total)
    names, times = [str(one.cluster) for one in fitting], [one.step.total for one in fitting]
    rates = [samples_per_second(one, time) for one, time in zip(fitting, times, strict=True)]
    yield Lying("Clusters compared", "Samples per second.", "samples/s", names, {"samples": rates})
    yield Lying("Steps of the clusters", "Milliseconds of a step.", "ms", names, {"step": times})


def _ranks(planned: Planned) -> Iterator[Figure]:
    placement, there = planned.found.placement, planned.problem.there[planned.problem.device]
    where = "GPU" if planned.topology.on_gpu else "host"
    yield Stacked(
        "Memory of the ranks",
        f"GiB of {where} memory at the peak; the dashed line is what there is.",
        "GiB",
        _memory(planned),
        float(there) / GIB,
    )
    yield Stacked(
        "Time of the ranks",
        "Milliseconds of a step for tables and the exchange of their embeddings.",
        "ms",
        _by_table(planned, placement.rated.cost[placement.option]),
    )


def _memory(planned: Planned) -> dict[str, np.ndarray]:
    """Returns the GiB of each table's weights, state and averages on each rank, and of everything else."""
    device = planned.problem.device
    found = _by_table(planned, planned.problem.kept_by_shard(planned.found)[:, device] / GIB)
    beside = planned.memory.total[:, device] / GIB - sum(found.values())
    return found | {BESIDE: np.maximum(beside, 0)}


def _by_table(planned: Planned, of_shard: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the values of the heaviest tables, and of all others together, on each rank.

    The heaviest tables are the same for memory and time, so that a table has one color.
    """
    placement = planned.found.placement
    totals = np.column_stack([placement.rated.total_cost, placement.rated.total_memory])[placement.option]
    heaviest = np.argsort(-(totals / np.maximum(totals.sum(axis=0), 1e-30)).sum(axis=1), kind="stable")[:NAMED]
    found = {planned.tables[one].name: np.zeros(planned.topology.ranks) for one in heaviest}
    found[REST] = np.zeros(planned.topology.ranks)
    for table, where in enumerate(placement.where):
        np.add.at(found.get(planned.tables[table].name, found[REST]), where, of_shard[table])
    return found


def _parts(planned: Planned) -> Iterator[Figure]:
    parts, placement = planned.step.parts, planned.found.placement
    remark = f"Of the slowest rank in each; the longest is {planned.step.longest.name}."
    times = [part.slowest for part in parts]
    yield Lying("Parts of a step", remark, "ms", [part.name for part in parts], {"time": times})
    heaviest = np.argsort(-placement.rated.total_cost[placement.option], kind="stable")[:HEAVIEST]
    costs = [step_milliseconds(planned.found, int(placement.option[one])) for one in heaviest]
    names = [planned.tables[one].name for one in heaviest]
    yield Lying("Heaviest tables", "Milliseconds of a step, a mean over the ranks.", "ms", names, {"time": costs})


def _between_hosts(planned: Planned) -> Figure:
    sent = sent_by_hosts(planned.placed, planned.tables, planned.topology) / 1e6
    words = "Exchange between hosts", "MB that each host sends to others in a step, there and back.", "MB"
    if len(sent) > MOST_LYING:
        return Stacked(*words, {"sent": sent}, of="host")
    return Lying(*words, [f"host {number}" for number in range(len(sent))], {"sent": sent.tolist()})
