"""Dense optimizers by name, and those of a model: one for each part of its dense weights, and one for the rest."""

import inspect
from functools import partial
from typing import Any

import torch
from torch import nn
from torchrec.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper

from trainer.config.dense_optim import BETAS, DENSE_OPTIONS, DenseOptimizerConfig
from trainer.core.errors import InputError
from trainer.core.registry import find_by_name
from trainer.optim.dense_weights import split
from trainer.optim.own_optimizer import check_own_optimizer
from trainer.optim.rates import part_key

# None whose state does not start at zero, such as NAdam, ASGD and Rprop: `initialize_optimizer_state` zeroes all state.
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
        config: The optimizer and its parts.
        is_checked: Whether steps of the user's own are tried, which needs weights with values.

    Raises:
        InputError: A part's weights cannot be found, or the user's own optimizer cannot be used.
    """
    optimizers: dict[str, KeyedOptimizer] = {}
    for part, chosen in split(weights, config.parts).items():
        make = partial(_make, config, _weight_decay(config, part))
        if is_checked and ":" in config.name and chosen:
            check_own_optimizer(config.name, make, [*chosen.values()])
        if chosen:
            optimizers["dense" if part is None else part_key(part)] = KeyedOptimizerWrapper(chosen, make)
    return optimizers


def _weight_decay(config: DenseOptimizerConfig, part: str | None) -> float:
    own = config.parts[part].weight_decay if part is not None else None
    return config.weight_decay if own is None else own


def _make(config: DenseOptimizerConfig, weight_decay: float, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = find_by_name("optimizer.dense.name", config.name, DENSE)
    if config.name in DENSE:
        return optimizer(weights, lr=config.learning_rate, weight_decay=weight_decay, **_options(config))
    options = dict(config.arguments)
    # Always, as the class may decay weights by default; where it has no such option, only to be refused.
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
    return {key: getattr(config, key) for key in keys if key not in BETAS} | betas
