"""Dense optimizers by name, and the ones of a model: one for each parameter group, and one for all other weights.

A weight is named as in fine-tuning: by its path in the model.
"""

import inspect
from collections.abc import Collection
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torchrec.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper

from trainer.config.optimizer import BETAS, DENSE_OPTIONS, DenseOptimizerConfig, DensePart
from trainer.core.errors import InputError
from trainer.core.registry import find_by_name
from trainer.models.embeddings import table_of_weight
from trainer.optim.own_optimizer import check_own_optimizer
from trainer.optim.schedules import part_key

# No optimizer whose state does not start at 0, such as NAdam, ASGD and Rprop: `create_dense_state` zeroes it.
DENSE: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "radam": torch.optim.RAdam,
}


def dense_optimizers(
    weights: dict[str, nn.Parameter], config: DenseOptimizerConfig, is_checked: bool = True
) -> dict[str, KeyedOptimizer]:
    """Returns the optimizers of dense weights, by the key of their learning rates.

    Args:
        weights: The dense weights that train, by their names in the sharded model.
        config: The optimizer and its parameter groups.
        is_checked: Whether steps of the user's own are tried, which needs weights with values.

    Raises:
        InputError: A group's weights cannot be found, or the user's own optimizer cannot be used.
    """
    optimizers: dict[str, KeyedOptimizer] = {}
    for part, chosen in split(weights, config.parts).items():
        make = partial(_make, config, _weight_decay(config, part))
        if is_checked and ":" in config.name and chosen:
            check_own_optimizer(config.name, make, [*chosen.values()])
        if chosen:
            optimizers["dense" if part is None else part_key(part)] = KeyedOptimizerWrapper(chosen, make)
    return optimizers


def freeze(model: nn.Module, patterns: list[str]) -> None:
    """Freezes the dense weights that the patterns name. Called before the model is sharded.

    Raises:
        InputError: A pattern matches nothing.
    """
    weights = {_label(name): weight for name, weight in model.named_parameters() if table_of_weight(name) is None}
    for label in _matching("optimizer.dense.frozen", patterns, weights):
        weights[label].requires_grad_(False)


def split(weights: dict[str, nn.Parameter], parts: dict[str, DensePart]) -> dict[str | None, dict[str, nn.Parameter]]:
    """Returns the weights of each parameter group, by its name and in order, and under None all other weights.

    Raises:
        InputError: A pattern matches nothing, or all weights of a group are in earlier groups.
    """
    labels = {_label(name): name for name in weights}
    groups: dict[str | None, dict[str, nn.Parameter]] = {}
    for part, config in parts.items():
        key = f"optimizer.dense.parts.{part}.weights"
        chosen = {labels[label] for label in _matching(key, config.weights, labels)}
        groups[part] = {name: weight for name, weight in weights.items() if name in chosen}
        if not groups[part]:
            raise InputError(f"{key} is {config.weights}, all of which are in earlier parts; put this part before them")
        weights = {name: weight for name, weight in weights.items() if name not in chosen}
    return groups | {None: weights}


def _weight_decay(config: DenseOptimizerConfig, part: str | None) -> float:
    own = config.parts[part].weight_decay if part is not None else None
    return config.weight_decay if own is None else own


def _make(config: DenseOptimizerConfig, weight_decay: float, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = find_by_name("optimizer.dense.name", config.name, DENSE)
    if config.name in DENSE:
        return optimizer(weights, lr=config.learning_rate, weight_decay=weight_decay, **_options(config))
    options = dict(config.arguments)
    # Passed even if 0, as the class may decay weights by default. A class without the option gets it only to refuse it.
    if weight_decay or "weight_decay" in inspect.signature(optimizer).parameters:
        options["weight_decay"] = weight_decay
    try:
        return optimizer(weights, lr=config.learning_rate, **options)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"optimizer.dense.name is '{config.name}', which takes no lr = {config.learning_rate} with {options}: "
            f"{error}; change optimizer.dense.arguments or the class"
        ) from error


def _options(config: DenseOptimizerConfig) -> dict[str, Any]:
    keys = DENSE_OPTIONS[config.name]
    betas = {"betas": (config.beta1, config.beta2)} if set(BETAS) <= set(keys) else {}
    # Not False, which would also keep torch from its other ways to update many weights at once on a GPU.
    fused = {"fused": True} if config.fused else {}
    return {key: getattr(config, key) for key in keys if key not in (*BETAS, "fused")} | betas | fused


def _label(name: str) -> str:
    return name.removeprefix("model.")  # the model's name in the module with its loss


def _matching(key: str, patterns: list[str], labels: Collection[str]) -> list[str]:
    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in labels):
            close = get_close_matches(pattern, labels, n=1, cutoff=0.0)
            about = f"the nearest is '{close[0]}'" if close else "there is none"
            raise InputError(f"{key} has '{pattern}', which matches no dense weight that trains; {about}")
    return [label for label in labels if any(fnmatchcase(label, pattern) for pattern in patterns)]
