"""Chooses dense weights by name: those that are frozen, and those of each part.

A weight has the name that it has in fine-tuning: its path in the model.
"""

from collections.abc import Collection
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from trainer.config.dense_optim import DensePart
from trainer.core.errors import InputError
from trainer.models.embeddings import table_of_weight


def freeze(model: nn.Module, patterns: list[str]) -> None:
    """Lets the dense weights that the patterns name stay as they are; before the model is sharded.

    Raises:
        InputError: A pattern matches nothing.
    """
    weights = {_label(name): weight for name, weight in model.named_parameters() if table_of_weight(name) is None}
    for label in _matching("optimizer.dense.frozen", patterns, weights):
        weights[label].requires_grad_(False)


def split(weights: dict[str, nn.Parameter], parts: dict[str, DensePart]) -> dict[str | None, dict[str, nn.Parameter]]:
    """Returns the weights of each part, by its name and in order, and under None those of no part.

    Raises:
        InputError: A pattern matches nothing, or a part has no weight that is not in an earlier one.
    """
    labels = {_label(name): name for name in weights}
    groups: dict[str | None, dict[str, nn.Parameter]] = {}
    for part, config in parts.items():
        key = f"optimizer.dense.parts.{part}.weights"
        chosen = {labels[label] for label in _matching(key, config.weights, labels)}
        groups[part] = {name: weight for name, weight in weights.items() if name in chosen}
        if not groups[part]:
            raise InputError(f"{key} is {config.weights}, all of which are in earlier parts; put this one before them")
        weights = {name: weight for name, weight in weights.items() if name not in chosen}
    return groups | {None: weights}


def _label(name: str) -> str:
    return name.removeprefix("model.")  # the model's name in the module with its loss


def _matching(key: str, patterns: list[str], labels: Collection[str]) -> list[str]:
    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in labels):
            close = get_close_matches(pattern, labels, n=1, cutoff=0.0)
            about = f"the nearest is '{close[0]}'" if close else "there is none"
            raise InputError(f"{key} has '{pattern}', which matches no dense weight that trains; {about}")
    return [label for label in labels if any(fnmatchcase(label, pattern) for pattern in patterns)]
