"""The table of a profile: the split of a step over the ranks, and what is costliest."""

from dataclasses import asdict
from typing import Any

from tabulate import tabulate

from torchx_recsys.planner.step_time import BACKWARD, FORWARD, UPDATE
from trainer.core.console import plural
from trainer.run.step_split import StepSplit

COMPUTING = (FORWARD, BACKWARD, UPDATE)


def describe(first_step: int, splits: list[StepSplit]) -> dict[str, Any]:
    """Returns the content of `traces/step-N.json`.

    Args:
        first_step: The first step of the profile.
        splits: The split of each rank, in their order.
    """
    return {"first_step": first_step, "steps": splits[0].steps, "ranks": [asdict(split) for split in splits]}


def render(first_step: int, splits: list[StepSplit]) -> str:
    """Returns the table of a profile, with the costliest operations of the rank that computes longest."""
    last = first_step + splits[0].steps - 1
    step_ms = sum(split.step_ms for split in splits) / len(splits)
    computing = [sum(split.parts[part] for part in COMPUTING) for split in splits]
    slowest = computing.index(max(computing))
    rows = []
    for part in splits[0].parts:
        rows.append(_row(part, [split.parts[part] for split in splits], step_ms))
        details = [name for name in splits[0].details if name.startswith(f"{part}:")]
        rows += [_row(name, [split.details[name] for split in splits], step_ms) for name in details]
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
