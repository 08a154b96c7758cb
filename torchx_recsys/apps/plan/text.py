"""A plan as text: whether it fits, how long a step takes, where tables are and why."""

from collections.abc import Iterator

import numpy as np
from tabulate import tabulate

from torchx_recsys.planner.hardware import GIB, Cluster
from torchx_recsys.planner.plan import Planned, Shortage
from torchx_recsys.planner.rank_memory import ACTIVATIONS
from torchx_recsys.planner.reasons import (
    WITHOUT_TABLES,
    alternatives,
    lack_for_copy,
    memory_gib,
    named_option,
    step_milliseconds,
    takes,
)
from torchx_recsys.planner.step_time import StepTime
from torchx_recsys.planner.tables import IN_HOST_MEMORY, PlannedTable, Table, ranges
from torchx_recsys.planner.topology import Topology
from trainer.core.console import plural

NAMED = 5  # maximum number of tables in a line


def named_cluster(cluster: Cluster) -> str:
    """Returns a cluster in words."""
    ranks = plural(cluster.ranks, "GPU" if cluster.on_gpu else "rank")
    return f"{ranks} on {plural(cluster.nodes, 'host')} of {cluster.name}" if cluster.name else ranks


def shortage(planned: Planned) -> str:
    """Describes how much memory a plan lacks, and the memory beside its tables."""
    assert isinstance(planned.solution, Shortage)
    times, topology = planned.solution.times, planned.topology
    there = " and ".join(f"{size / GIB:.4g} GiB of {where} memory" for where, size in _memory_of_a_rank(topology))
    if times <= 1:
        return f"all ranks together may hold the tables, but no placement of their shards was found in {there} each"
    if np.isinf(times):
        return f"no memory is enough of a rank with {there}"
    problem = planned.problem
    beside = problem.beside_shards()
    is_by_batch = beside[ACTIVATIONS] > problem.there[problem.device] / 2
    hint = "; --train.micro_batches divides its activations" if is_by_batch else ""
    return (
        f"a rank needs at least {times:.3g} times its memory, {there}, for its tables, beside which it takes "
        f"{takes(beside)}{hint}"
    )


def _memory_of_a_rank(topology: Topology) -> Iterator[tuple[str, int]]:
    if topology.on_gpu:
        yield "GPU", topology.gpu_bytes
    yield "host", topology.host_bytes


def render(planned: Planned) -> str:
    """Returns a plan that fits as text."""
    parts = [_summary(planned), _step(planned), _memory(planned), _tables(planned)]
    return "\n\n".join(parts)


def _summary(planned: Planned) -> str:
    head = f"{planned.cluster}: {named_cluster(planned.cluster)}"
    return "\n".join([head, "", *(f"{name:<9} {line}" for name, line in summary(planned).items())])


def summary(planned: Planned) -> dict[str, str]:
    """Returns the summary of a plan that fits, by line."""
    step, found = planned.step, planned.found
    cost, longest = found.placement.cost, step.longest
    gap = f"{found.gap:.2%}: tables take the slowest rank {cost:.4g} ms, proven {found.bound.cost:.4g} at least"
    lines = {
        "fits": fits(planned),
        "in host": in_host_memory(planned),
        "saves": lack_for_copy(planned.memory, planned.problem),
        "step": _speed(planned, step),
        "bound by": f"{longest.name}: {longest.slowest:.3g} ms, {longest.slowest / step.total:.0%} of the step",
        "gap": gap if planned.tables else "",
        "memory": price_of_memory(planned),
        "figures": step.source,
    }
    for system, other in planned.step_of_others.items():
        lines["other"] = f"{_speed(planned, other)}, for {system.assumption}"
    return {name: line for name, line in lines.items() if line}


def _speed(planned: Planned, step: StepTime) -> str:
    about = "about" if planned.topology.system else "at most"
    return f"{step.total:.3g} ms, so {about} {samples_per_second(planned, step.total):,.0f} samples/s"


def samples_per_second(planned: Planned, milliseconds: float) -> float:
    """Returns the number of samples trained per second."""
    return planned.samples / milliseconds * 1000


def fits(planned: Planned) -> str:
    """Describes whether a plan fits, and how much of its memory the fullest rank takes."""
    used, usable = planned.fullest, planned.problem.usable
    kinds = 2 if planned.topology.on_gpu else 1
    parts = [
        f"{most / GIB:.3g} of {there / GIB:.4g} GiB of {where} memory ({most / there:.0%})"
        for (where, there), most in zip(_memory_of_a_rank(planned.topology), used[-kinds:], strict=True)
        if most or where == "GPU"
    ]
    answer = "yes" if (used <= usable).all() else "no"
    kept = f", of which planner.reserve keeps {planned.problem.reserve:.0%} free" if answer == "no" else ""
    return f"{answer}: the fullest rank takes {', and '.join(parts)}{kept}"


def in_host_memory(planned: Planned) -> str:
    """Names the tables that GPUs read from host memory (UVM); empty without one."""
    placed = zip(planned.tables, planned.placed, strict=True)
    found = [_kept_there(table, one) for table, one in placed if one.kernel in IN_HOST_MEMORY]
    rest = f" and {len(found) - NAMED:,} more" if len(found) > NAMED else ""
    return f"{plural(len(found), 'table')}: {', '.join(found[:NAMED])}{rest}" if found else ""


def _kept_there(table: Table, placed: PlannedTable) -> str:
    return f"{table.name} ({f'{placed.cached:.0%} of its rows in a cache' if placed.cached else 'whole'})"


def price_of_memory(planned: Planned) -> str:
    """Describes the gain from more memory."""
    prices = planned.found.bound.prices * GIB
    scarce = [
        f"scarce: one more GiB on every {where} saves {price:.3g} ms of a step, at the margin"
        for where, price in zip(("GPU", "host"), prices, strict=True)
        if price > 0
    ]
    return "; ".join(scarce) or "not scarce: more of it would make no step faster"


def _step(planned: Planned) -> str:
    step = planned.step
    rows = [[part.name, part.slowest, part.mean, f"{part.slowest / step.total:.0%}"] for part in step.parts]
    return tabulate(rows, ["ms of a step", "slowest rank", "mean", "share"], floatfmt=",.3f")


def _memory(planned: Planned) -> str:
    kinds, there = planned.memory_by_kind, dict(_memory_of_a_rank(planned.topology))
    rows = []
    for where, size in there.items():
        parts = {kind: of_ranks for kind, of_ranks in kinds.items() if kind.startswith(where)}
        total = sum(parts.values(), np.zeros(planned.topology.ranks))
        fullest = int(total.argmax())
        of_all = {f"{where}: all, of {size / GIB:.4g}": total} if parts else {}
        for kind, of_ranks in (parts | of_all).items():
            rows.append([kind, of_ranks[fullest] / GIB, fullest, of_ranks.min() / GIB, of_ranks.mean() / GIB])
    return tabulate(rows, ["GiB of a rank", "fullest", "rank", "least", "mean"], floatfmt=",.3f")


def _tables(planned: Planned) -> str:
    if not planned.tables:
        return WITHOUT_TABLES
    found, placement = planned.found, planned.found.placement
    rows = []
    for number in np.argsort(-placement.rated.total_cost[placement.option], kind="stable"):
        table, option = planned.tables[number], int(placement.option[number])
        others = alternatives(found, int(number))
        why = f"{others[0].placement}: {others[0].reason}" if others else "nothing else is allowed"
        gpu, host = memory_gib(found, option)
        memory, milliseconds = f"{gpu + host:.3f}", f"{step_milliseconds(found, option):.4f}"
        shape = f"{table.rows:,} x {table.columns}"
        ranks = where_is(placement.where[number], planned.topology.ranks)
        rows.append([table.name, shape, named_option(found, option), ranks, memory, milliseconds, why])
    headers = ["table", "shape", "placement", "ranks", "GiB", "ms", "instead of"]
    note = "GiB and ms of each table are means over the ranks; the dearest come first."
    return tabulate(rows, headers, disable_numparse=True, colalign=("left",) * 4 + ("right",) * 2) + f"\n{note}"


def where_is(where: np.ndarray, ranks: int) -> str:
    """Returns the ranks of a table's shards, such as `0-7,12`."""
    used = np.unique(where)
    return "all" if len(used) == ranks else ",".join(ranges(used.tolist()))
