"""Differences between two runs: their losses and everything in their last checkpoints."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.consolidate import read_tensors
from trainer.checkpoint.store import Checkpoint, Checkpoints
from trainer.core.run_directory import RunDirectory
from trainer.models.embeddings import table_of_weight


@dataclass(frozen=True)
class Difference:
    """The difference between two runs in a loss, a tensor or a part of the train state.

    Attributes:
        kind: Kind of thing, such as `losses`.
        name: Name of the thing.
        size: The norm of the difference over the norm of the baseline's, 0 if the two are equal bit by bit.
    """

    kind: str
    name: str
    size: float


def differences(baseline: str, other: str, step: int) -> list[Difference]:
    """Compares two runs.

    Args:
        baseline: URL of a run directory.
        other: URL of another.
        step: The step of the checkpoints to compare.

    Returns:
        A difference for the loss of each step, for each tensor, and for each key of state.json.
    """
    runs = [RunDirectory(url) for url in (baseline, other)]
    checkpoints = [Checkpoints(run).at(step) for run in runs]
    return [*_losses(*map(_metrics, runs)), *_tensors(*checkpoints), *_train_state(*checkpoints)]


def _metrics(run: RunDirectory) -> dict[str, float]:
    """Returns the losses of training and evaluation, each with a name that tells the step."""
    training = [json.loads(line) for line in (run.read("metrics.jsonl") or "").splitlines()]
    evaluations = [json.loads(line) for line in (run.read("evaluations.jsonl") or "").splitlines()]
    losses = {f"loss of step {line['step']}": line["loss"] for line in training}
    return losses | {
        f"{name} of {line['split']} after step {line['step']}": value
        for line in evaluations
        for name, value in line.items()
        if name.startswith("log_loss")
    }


def _losses(baseline: dict[str, float], other: dict[str, float]) -> Iterator[Difference]:
    for name in baseline | other:
        pair = [torch.tensor(losses.get(name, torch.nan), dtype=torch.float64) for losses in (baseline, other)]
        yield Difference("losses", name, difference(*pair))


def _tensors(baseline: Checkpoint, other: Checkpoint) -> Iterator[Difference]:
    ours, theirs = read_tensors(baseline.url), read_tensors(other.url)
    for name in sorted(ours | theirs):
        in_both = name in ours and name in theirs
        yield Difference(_kind(name), name, difference(ours[name], theirs[name]) if in_both else torch.inf)


def _kind(name: str) -> str:
    part, _, rest = name.partition(".")
    if part == "model":
        return "weights of tables" if table_of_weight(rest) else "weights of the dense part"
    return f"{part} optimizer: {name.rpartition('.')[2]}"


def _train_state(baseline: Checkpoint, other: Checkpoint) -> Iterator[Difference]:
    for key in sorted(baseline.train_state | other.train_state):
        same = baseline.train_state.get(key) == other.train_state.get(key)
        yield Difference("train state (state.json)", key, 0.0 if same else torch.inf)


def difference(baseline: Tensor, other: Tensor) -> float:
    """Returns the norm of two tensors' difference over the norm of the first.

    The norm, for Adagrad and Adam can make a whole step of a gradient that is nothing but rounding, and single values
    then differ by much. It is 0 if the tensors are equal bit by bit, and infinite if their shapes or types differ or a
    value is not finite.
    """
    if baseline.shape != other.shape or baseline.dtype != other.dtype:
        return torch.inf
    if torch.equal(baseline, other):
        return 0.0
    apart = (baseline.double() - other.double()).norm() / baseline.double().norm()
    return apart.nan_to_num(torch.inf, torch.inf).item()
