"""The table of a profile: the split of a step over the ranks, and what is costliest."""

from dataclasses import asdict
from typing import Any

from tabulate import tabulate

from trainer.core.console import plural
from trainer.run.step_split import Split

COMPUTING = ("forward", "backward", "table update", "optimizer")


def describe(first_step: int, splits: list[Split]) -> dict[str, Any]:
    """Returns the content of `traces/step-N.json`.

    Args:
        first_step: The first step of the profile.
        splits: The split of each rank, in their order.
    """
    return {"first_step": first_step, "steps": splits[0].steps, "ranks": [asdict(split) for split in splits]}


def render(first_step: int, splits: list[Split]) -> str:
    """Returns the table of a profile, with the costliest operations of the rank that computes longest."""
    last = first_step + splits[0].steps - 1
    step_ms = sum(split.step_ms for split in splits) / len(splits)
    computing = [sum(split.parts[part] for part in COMPUTING) for split in splits]
    slowest = computing.index(max(computing))
    times = {part: [split.parts[part] for split in splits] for part in splits[0].parts}
    rows = [_row(name, values, step_ms) for name, values in times.items()]
    rows += [_row("step", [split.step_ms for split in splits], step_ms), _row("computing", computing, step_ms)]
    headers = ["ms per step", "mean", "share", "slowest rank", "there", "imbalance"]
    costliest = [
        [name[:80], f"{time:.3f}", f"{time / splits[slowest].step_ms:.1%}"]
        for name, time in splits[slowest].costliest.items()
    ]
    return (
        f"profile of steps {first_step:,} to {last:,}, {plural(len(splits), 'rank')}\n"
        f"{tabulate(rows, headers, disable_numparse=True, colalign=('left', *['right'] * 5))}\n\n"
        f"{tabulate(costliest, [f'costliest on rank {slowest}', 'ms per step', 'share'], disable_numparse=True)}"
    )


def _row(name: str, values: list[float], step_ms: float) -> list[str]:
    mean, most = sum(values) / len(values), max(values)
    imbalance = f"{most / mean:.2f}" if mean else ""
    return [name, f"{mean:.3f}", f"{mean / step_ms:.1%}", str(values.index(most)), f"{most:.3f}", imbalance]
