"""Dense optimizers by name, and the optimizers of a model: one per parameter group, and one for all other weights.

Weights have the same names as in fine-tuning: their paths in the model.
"""

import inspect
import re
from collections.abc import Callable, Collection
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.optim.keyed import KeyedOptimizer, KeyedOptimizerWrapper

from trainer.config.optimizer import BETAS, DENSE_OPTIONS, REGEX, DenseOptimizerConfig, DensePart
from trainer.core.errors import InputError
from trainer.core.registry import find_by_name
from trainer.models.embeddings import table_of_weight
from trainer.optim.schedules import part_key

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
STEPS = 3

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
        settings, key = config.of_part(part), _name_key(config, part)
        make = partial(_make, settings, key)
        if is_checked and ":" in settings.name and chosen:
            check_own_optimizer(f"{key} is '{settings.name}'", make, [*chosen.values()])
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


def trained_without_state(labels: Collection[str], config: DenseOptimizerConfig) -> set[str]:
    """Returns the dense weights, by their paths in the model, that train with an optimizer that keeps no state."""
    plain, others = set(), {label for label in labels if not any(_matches(label, one) for one in config.frozen)}
    for part in (*config.parts, None):
        patterns = config.parts[part].weights if part is not None else ["*"]
        chosen = {label for label in others if any(_matches(label, pattern) for pattern in patterns)}
        settings, others = config.of_part(part), others - chosen
        plain |= chosen if settings.name == "sgd" and not settings.momentum else set()
    return plain


def _name_key(config: DenseOptimizerConfig, part: str | None) -> str:
    """Returns the key that names the optimizer of a parameter group."""
    own = part is not None and config.parts[part].name is not None
    return f"optimizer.dense.parts.{part}.name" if own else "optimizer.dense.name"


def _make(config: DenseOptimizerConfig, key: str, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = find_by_name(key, config.name, DENSE)
    if config.name in DENSE:
        options = _options(config, weights[0].device)
        return optimizer(weights, lr=config.learning_rate, weight_decay=config.weight_decay, **options)
    options = dict(config.arguments)
    # Passed even if 0, as the class may decay weights by default. A class without the option gets it only to refuse it.
    if config.weight_decay or "weight_decay" in inspect.signature(optimizer).parameters:
        options["weight_decay"] = config.weight_decay
    try:
        return optimizer(weights, lr=config.learning_rate, **options)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{key} is '{config.name}', which takes no lr = {config.learning_rate} with {options}: {error}; change "
            f"{key.removesuffix('name')}arguments or the class"
        ) from error


def _options(config: DenseOptimizerConfig, device: torch.device) -> dict[str, Any]:
    keys = DENSE_OPTIONS[config.name]
    is_fused = has_fused_kernel(config.name, device) if config.fused is None else config.fused
    betas = {"betas": (config.beta1, config.beta2)} if set(BETAS) <= set(keys) else {}
    # Not False, which would also keep torch from its other ways to update many weights at once on a GPU.
    fused = {"fused": True} if is_fused else {}
    return {key: getattr(config, key) for key in keys if key not in (*BETAS, "fused")} | betas | fused


def has_fused_kernel(name: str, device: torch.device) -> bool:
    """Returns whether torch can update all weights on a device in one kernel of an optimizer."""
    # Not by trying: Adagrad accepts `fused` for a GPU, for which torch 2.11 has no kernel, and fails in its first step.
    kernel, key = f"aten::_fused_{name}_", torch._C._dispatch_key_for_device(device.type)
    return "fused" in DENSE_OPTIONS[name] and torch._C._dispatch_has_kernel_for_dispatch_key(kernel, key)


def _label(name: str) -> str:
    return name.removeprefix("model.")  # the model's name in the module with its loss


def _matching(key: str, patterns: list[str], labels: Collection[str]) -> list[str]:
    for pattern in patterns:
        if not any(_matches(label, pattern) for label in labels):
            close = get_close_matches(pattern.removeprefix(REGEX), labels, n=1, cutoff=0.0)
            about = f"the nearest is '{close[0]}'" if close else "there is none"
            raise InputError(f"{key} has '{pattern}', which matches no dense weight that trains; {about}")
    return [label for label in labels if any(_matches(label, pattern) for pattern in patterns)]


def _matches(label: str, pattern: str) -> bool:
    if pattern.startswith(REGEX):
        return re.fullmatch(pattern.removeprefix(REGEX), label) is not None
    return fnmatchcase(label, pattern)


def check_own_optimizer(own: str, make: Make, weights: list[nn.Parameter]) -> None:
    """Tries an optimizer on copies of its weights, and refuses one that a resume or fine-tuning would get wrong.

    Every run takes a step at rate zero, which creates the state, and sets it to zero; a checkpoint then fills it in.
    So a step at rate zero must change no weight, the state must be tensors, and an optimizer with all of them zero
    must behave as if it had taken no step.

    Args:
        own: The key and the name of the optimizer, for messages.
        make: Makes the optimizer.
        weights: Its weights.

    Raises:
        InputError: The optimizer breaks one of these rules.
    """
    fresh, used = _copies(weights), _copies(weights)
    straight, zeroed = make(fresh), make(used)
    if any("lr" not in group for group in zeroed.param_groups):
        raise _refused(own, "has no 'lr' in its param_groups, which schedules set")
    rates = [group["lr"] for group in zeroed.param_groups]
    _set_rates(zeroed, [0.0] * len(rates))
    _take_steps(own, zeroed, used, 1)
    if not _equal(used, weights):
        raise _refused(own, "changes weights at a learning rate of 0")
    _zero_state(own, zeroed)
    _set_rates(zeroed, rates)
    _take_steps(own, straight, fresh, STEPS)
    _take_steps(own, zeroed, used, STEPS)
    if not _equal(used, fresh):
        raise _refused(own, "has state that does not begin at zero, or keeps it elsewhere than in its `state`")


def _refused(own: str, why: str) -> InputError:
    return InputError(
        f"{own}, which {why}, so that it could not be resumed exactly; "
        "use another or change it (see docs/guides/dense_optimizers.md)"
    )


def _copies(weights: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(weight.detach().clone()) for weight in weights]


def _set_rates(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _take_steps(own: str, optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], steps: int) -> None:
    random = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=random).to(weight)
        try:
            optimizer.step(closure=None)  # pyrefly: ignore[no-matching-overload]
        except TypeError as error:
            raise _refused(own, f"cannot take a step without a closure ({error})") from error


def _zero_state(own: str, optimizer: torch.optim.Optimizer) -> None:
    for slots in optimizer.state.values():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                value.zero_()
            elif value is not None:
                raise _refused(own, f"keeps '{slot}' as {type(value).__name__} in its state instead of as a tensor")


def _equal(ours: list[nn.Parameter], theirs: list[nn.Parameter]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True) for one, other in pairs)
