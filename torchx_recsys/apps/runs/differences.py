"""Differences between two runs: their losses and everything in their last checkpoints."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchx_recsys.apps.runs.saved_tensors import read_tensors
from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory
from trainer.models.embeddings import table_of_weight


@dataclass(frozen=True)
class Difference:
    """The difference between two runs in a loss, a tensor or a part of the train state.

    Attributes:
        kind: Kind of thing, such as `losses`.
        name: Name of the thing.
        size: The norm of the difference over the norm of the baseline; 0 if both are equal bit by bit.
    """

    kind: str
    name: str
    size: float


def differences(baseline: str, other: str, step: int) -> list[Difference]:
    """Compares two runs.

    Args:
        baseline: URL of a run directory.
        other: URL of the other run.
        step: The step of the checkpoints to compare.

    Returns:
        A difference for the loss of each step, for each tensor, and for each key of state.json.
    """
    ours, theirs = (_contents(RunDirectory(url), step) for url in (baseline, other))
    return [Difference(*thing, difference(ours.get(thing), theirs.get(thing))) for thing in ours | theirs]


def _contents(run: RunDirectory, step: int) -> dict[tuple[str, str], Any]:
    """Returns everything that the comparison covers in a run, by kind and name."""
    checkpoint = Checkpoints(run).at(step)
    losses, tensors, state = _losses(run), read_tensors(checkpoint.url), checkpoint.train_state
    return {
        **{("losses", name): _as_tensor(loss) for name, loss in losses.items()},
        **{(_kind(name), name): tensor for name, tensor in sorted(tensors.items())},
        **{("train state (state.json)", key): value for key, value in sorted(state.items())},
    }


def _as_tensor(loss: float | None) -> Tensor | None:
    return None if loss is None else torch.tensor(loss, dtype=torch.float64)


def _losses(run: RunDirectory) -> dict[str, float | None]:
    """Returns the losses of training and evaluation, named by step; None if every step was skipped."""
    losses = {f"loss of step {line['step']}": line["loss"] for line in run.records("metrics.jsonl")}
    return losses | {
        f"{name} of {line['split']} after step {line['step']}": value
        for line in run.records("evaluations.jsonl")
        for name, value in line.items()
        if name.startswith("log_loss")
    }


def _kind(name: str) -> str:
    part, _, rest = name.partition(".")
    if part == "model":
        return "weights of tables" if table_of_weight(rest) else "weights of the dense part"
    if part == "managed":
        return "rows of managed ids"
    return "averages of weights" if part.startswith("ema") else f"{part} optimizer: {name.rpartition('.')[2]}"


def difference(baseline: Any, other: Any) -> float:
    """Returns the norm of two tensors' difference over the norm of the first; 0 or infinite for other values.

    Adagrad and Adam can turn a gradient of pure rounding noise into a whole step, so single values may differ a lot;
    the norm does not. The result is 0 for tensors that are equal bit by bit, and infinite if their shapes or types
    differ or a value is not finite.
    """
    if not isinstance(baseline, Tensor) or not isinstance(other, Tensor):
        return 0.0 if baseline == other else torch.inf
    if baseline.shape != other.shape or baseline.dtype != other.dtype:
        return torch.inf
    if torch.equal(baseline, other):
        return 0.0
    apart = (baseline.double() - other.double()).norm() / baseline.double().norm()
    return apart.nan_to_num(torch.inf, torch.inf).item()
