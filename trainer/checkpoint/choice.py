"""Finds the checkpoint that a later command works on: the newest, the best, or the checkpoint of a step."""

import re

from trainer.checkpoint.retention import Evaluations, ranking, scores
from trainer.checkpoint.store import Checkpoint, Checkpoints, FindDamage
from trainer.core.errors import InputError, some_of
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named

NEWEST = "newest"
BEST = "best"


def check_choice(key: str, choice: str) -> None:
    """Refuses a choice that is neither newest, best nor the number of a step.

    Raises:
        InputError: The choice is none of these. The message names the key and what is allowed.
    """
    if choice not in (NEWEST, BEST) and not re.fullmatch(r"[1-9]\d*", choice):
        raise InputError(f"{key} is '{choice}'; allowed: {NEWEST}, {BEST}, or the number of a step")


def find_checkpoint(
    run: RunDirectory, run_key: str, choice: str, key: str, find: FindDamage | None = None
) -> Checkpoint:
    """Finds a committed checkpoint of a run and verifies it.

    Args:
        run: The run directory.
        run_key: The flag or key that named the run.
        choice: newest, best (by checkpoint.keep.best of the run), or the number of a step.
        key: The flag or key that gave the choice.
        find: Verifies files. Unset: `find_damage`, on this rank alone.

    Raises:
        InputError: There is no such checkpoint, or it is damaged.
    """
    check_choice(key, choice)
    checkpoints = Checkpoints(run)
    with named(run_key, run.url):
        if choice not in (NEWEST, BEST):
            return checkpoint_of_step(checkpoints, int(choice), f"{key} is {choice}", find)
        found = checkpoints.newest(find) if choice == NEWEST else _best(run, checkpoints, key, find)
    if found is None:
        lacks = f"evaluated checkpoint; choose another {key}" if choice == BEST else "committed checkpoint; train first"
        raise InputError(f"{run_key} is '{run.url}', which holds no {lacks}")
    return found


def checkpoint_of_step(checkpoints: Checkpoints, step: int, given: str, find: FindDamage | None = None) -> Checkpoint:
    """Finds the checkpoint of a step and verifies it.

    Args:
        checkpoints: The checkpoints of the run.
        step: The step.
        given: The flag or key that names the step, as `KEY is VALUE`.
        find: Verifies files. Unset: `find_damage`, on this rank alone.

    Raises:
        InputError: There is no such checkpoint, or it is damaged.
    """
    steps = checkpoints.steps()
    known = some_of(other for other in steps if other != step) or "none"
    if step not in steps:
        raise InputError(f"{given}, which is no committed checkpoint; that run has checkpoints of steps: {known}")
    if damage := checkpoints.damage(step, find=find):
        raise InputError(f"{given}, which is damaged: {damage}; that run also has checkpoints of steps: {known}")
    return checkpoints.at(step)


def best_checkpoint(
    checkpoints: Checkpoints, metric: str, evaluations: Evaluations, find: FindDamage | None = None
) -> Checkpoint | None:
    """Finds the best checkpoint that is not damaged; None if no checkpoint was evaluated.

    Args:
        checkpoints: The checkpoints of the run.
        metric: The metric on data.validation to compare.
        evaluations: The evaluations of the run.
        find: Verifies files. Unset: `find_damage`, on this rank alone.
    """
    return checkpoints.first_good(ranking(metric, scores(metric, checkpoints.steps(), evaluations)), find)


def read_evaluations(run: RunDirectory) -> Evaluations:
    """Returns the lines of a run's evaluations.jsonl."""
    return run.read_records("evaluations.jsonl")


def _best(run: RunDirectory, checkpoints: Checkpoints, key: str, find: FindDamage | None) -> Checkpoint | None:
    keep = (run.read_toml("config.toml") or {}).get("checkpoint", {}).get("keep", {})
    if "best" not in keep:
        raise InputError(
            f"{key} is 'best', but the run '{run.url}' has no checkpoint.keep.best, the metric to go by; name a step"
        )
    return best_checkpoint(checkpoints, keep["best"], read_evaluations(run), find)
