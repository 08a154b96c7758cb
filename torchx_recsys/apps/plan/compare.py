"""A comparison of clusters: whether plans fit, how long a step takes."""

from collections.abc import Sequence

from tabulate import tabulate

from torchx_recsys.apps.plan.text import samples_per_second, shortage
from torchx_recsys.planner.hardware import GIB
from torchx_recsys.planner.plan import Planned


def compare(planned: Sequence[Planned]) -> str:
    """Returns a table of plans for several clusters, fastest first, plans that do not fit last."""
    rows = [_row(one) for one in sorted(planned, key=_milliseconds)]
    headers = [
        "cluster",
        "ranks",
        "ms of a step",
        "samples/s",
        "bound by",
        "above the bound",
        "fullest rank, GiB",
        "of",
    ]
    table = tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * 3, "left", *["right"] * 3))
    notes = [f"{one.cluster} does not fit: {shortage(one)}" for one in planned if not one.fits]
    figures = dict.fromkeys(one.step.source for one in planned if one.fits)
    return "\n".join([table, "", *(f"Figures: {source}" for source in figures), *notes])


def _milliseconds(planned: Planned) -> float:
    return planned.step.total if planned.fits else float("inf")


def _row(planned: Planned) -> list[str]:
    name = [str(planned.cluster), f"{planned.cluster.ranks:,}"]
    if not planned.fits:
        return [*name, "does not fit", *[""] * 5]
    step, device = planned.step, planned.problem.device
    return [
        *name,
        f"{step.total:.3f}",
        f"{samples_per_second(planned, step.total):,.0f}",
        step.longest.name,
        f"{planned.found.gap:.2%}",
        f"{planned.fullest[device] / GIB:.2f}",
        f"{planned.problem.there[device] / GIB:.2f}",
    ]
