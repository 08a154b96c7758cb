"""How far two runs are apart: their losses and everything in their last checkpoints."""

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
    """One thing that both runs have.

    Attributes:
        kind: What it is one of, for people.
        name: Its own name.
        size: The norm of the difference over the norm of the straight run's, 0 if the two are equal bit by bit.
    """

    kind: str
    name: str
    size: float


def differences(straight: str, other: str, step: int) -> list[Difference]:
    """Compares two runs.

    Args:
        straight: URL of one run directory.
        other: URL of another.
        step: The step of the checkpoints to compare.

    Returns:
        One for the loss of each step, for each tensor, and for each key of state.json.
    """
    runs = [RunDirectory(url) for url in (straight, other)]
    checkpoints = [Checkpoints(run).at(step) for run in runs]
    return [*_losses(*map(_metrics, runs)), *_tensors(*checkpoints), *_train_state(*checkpoints)]


def _metrics(run: RunDirectory) -> dict[str, float]:
    """Returns the losses of training and evaluation by what they are losses of."""
    training = [json.loads(line) for line in (run.read("metrics.jsonl") or "").splitlines()]
    evaluations = [json.loads(line) for line in (run.read("evaluations.jsonl") or "").splitlines()]
    losses = {f"loss of step {line['step']}": line["loss"] for line in training}
    return losses | {
        f"{name} of {line['split']} after step {line['step']}": value
        for line in evaluations
        for name, value in line.items()
        if name.startswith("log_loss")
    }


def _losses(straight: dict[str, float], other: dict[str, float]) -> Iterator[Difference]:
    for name in straight | other:
        pair = [torch.tensor(losses.get(name, torch.nan), dtype=torch.float64) for losses in (straight, other)]
        yield Difference("losses", name, difference(*pair))


def _tensors(straight: Checkpoint, other: Checkpoint) -> Iterator[Difference]:
    ours, theirs = read_tensors(straight.url), read_tensors(other.url)
    for name in sorted(ours | theirs):
        there = name in ours and name in theirs
        yield Difference(_kind(name), name, difference(ours[name], theirs[name]) if there else torch.inf)


def _kind(name: str) -> str:
    part, _, rest = name.partition(".")
    if part == "model":
        return "weights of tables" if table_of_weight(rest) else "weights of the dense part"
    return f"{part} optimizer: {name.rpartition('.')[2]}"


def _train_state(straight: Checkpoint, other: Checkpoint) -> Iterator[Difference]:
    for key in sorted(straight.train_state | other.train_state):
        same = straight.train_state.get(key) == other.train_state.get(key)
        yield Difference("train state (state.json)", key, 0.0 if same else torch.inf)


def difference(straight: Tensor, other: Tensor) -> float:
    """Returns the norm of two tensors' difference over the norm of the first.

    The norm, for Adagrad and Adam can make a whole step of a gradient that is nothing but rounding, and single values
    then differ by much. It is 0 if the tensors are equal bit by bit, and infinite if their shapes or types differ or a
    value is not finite.
    """
    if straight.shape != other.shape or straight.dtype != other.dtype:
        return torch.inf
    if torch.equal(straight, other):
        return 0.0
    apart = (straight.double() - other.double()).norm() / straight.double().norm()
    return apart.nan_to_num(torch.inf, torch.inf).item()
