"""Retention: decides which checkpoints are kept. Pure functions of steps and evaluations; `saver.py` deletes."""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from trainer.checkpoint.store import Checkpoints
from trainer.config.train import Retention
from trainer.core.console import plural
from trainer.core.errors import DamagedError
from trainer.metrics.registry import higher_is_better, result_name

Evaluations = list[dict[str, Any]]
"""The lines of evaluations.jsonl."""


def expired(
    keep: Retention,
    steps: list[int],
    evaluations: Evaluations,
    ends: Mapping[int, str],
    predecessors: Mapping[int, int | None],
) -> list[int]:
    """Returns the steps of the checkpoints that no rule keeps, in order.

    Args:
        keep: The rules.
        steps: The steps of all committed checkpoints, in order.
        evaluations: The evaluations so far.
        ends: The names of what ends with a checkpoint, by its step, in order.
        predecessors: The step that each checkpoint is a delta on, by its own; None for a whole one.
    """
    reasons = reasons_to_keep(keep, steps, evaluations, ends, predecessors)
    return [step for step in steps if not reasons[step]]


def reasons_to_keep(
    keep: Retention,
    steps: list[int],
    evaluations: Evaluations,
    ends: Mapping[int, str],
    predecessors: Mapping[int, int | None],
) -> dict[int, list[str]]:
    """Returns the reasons to keep the checkpoint of each step; a checkpoint without a reason has expired.

    Args:
        keep: The rules.
        steps: The steps of all committed checkpoints, in order.
        evaluations: The evaluations so far.
        ends: The names of what ends with a checkpoint, by its step, in order.
        predecessors: The step that each checkpoint is a delta on, by its own; None for a whole one.
    """
    # Sets, not lists: a run that keeps 10,000 checkpoints would search 10,000 times among as many steps.
    newest = {*steps[-keep.newest :]}
    newest_ends = {*[*ends][-keep.segments :]} if keep.segments else set()
    best = best_step(keep.best, scores(keep.best, steps, evaluations)) if keep.best else None
    reasons = {
        step: [f"newest {keep.newest}"] * (step in newest)
        + [f"best {keep.best}"] * (step == best)
        + [f"every {plural(keep.every_steps, 'step')}"] * (keep.every_steps > 0 and step % keep.every_steps == 0)
        + [f"end of segment {ends.get(step)}"] * (step in newest_ends)
        for step in steps
    }
    for step in reversed(steps):
        before = predecessors.get(step)
        if reasons[step] and before in reasons:
            reasons[before].append(f"step {step} builds on it")
    return reasons


def named_ends(checkpoints: Checkpoints, steps: list[int]) -> dict[int, str]:
    """Returns the names of the segments, such as days, that end with a checkpoint, by the checkpoint's step.

    Args:
        checkpoints: The checkpoints of the run.
        steps: The steps of committed checkpoints, in order.
    """
    ends = {}
    for step in steps:
        with suppress(ValueError, KeyError, DamagedError):  # the checkpoint is damaged, or was just deleted
            if (name := checkpoints.end_at(step)) is not None:
                ends[step] = name
    return ends


def scores(metric: str, steps: list[int], evaluations: Evaluations) -> dict[int, float]:
    """Returns the values of a metric on data.validation by step, where it is defined."""
    name = result_name(metric)
    found = {line["step"]: line[name] for line in evaluations if line["split"] == "validation" and name in line}
    # NaN, such as the AUC of a single class, is neither better nor worse than a number.
    return {step: found[step] for step in steps if step in found and not math.isnan(found[step])}


def best_step(metric: str, scores: dict[int, float]) -> int | None:
    """Returns the step with the best score; None without scores, or if the metric has no better direction."""
    return next(iter(ranking(metric, scores)), None)


def ranking(metric: str, scores: dict[int, float]) -> list[int]:
    """Returns the steps with a score, best first and earlier first among equals; empty if no direction is better."""
    higher = higher_is_better(metric)
    return [] if higher is None else sorted(scores, key=lambda step: scores[step], reverse=higher)
