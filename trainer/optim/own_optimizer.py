"""Checks that checkpoints can hold the state of a user's own dense optimizer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainer.core.errors import InputError

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
STEPS = 3


def check_own_optimizer(name: str, make: Make, weights: list[nn.Parameter]) -> None:
    """Tries an optimizer on copies of its weights, and refuses one that a resume or fine-tuning would get wrong.

    Every run takes a step at rate zero, which creates the state, and sets it to zero; a checkpoint then fills it in.
    So a step at rate zero must change no weight, the state must be tensors, and an optimizer with all of them zero
    must behave as if it had taken no step.

    Raises:
        InputError: The optimizer breaks one of these rules.
    """
    fresh, used = _copies(weights), _copies(weights)
    straight, zeroed = make(fresh), make(used)
    if any("lr" not in group for group in zeroed.param_groups):
        raise _refused(name, "has no 'lr' in its param_groups, which schedules set")
    rates = [group["lr"] for group in zeroed.param_groups]
    _set_rates(zeroed, [0.0] * len(rates))
    _take_steps(name, zeroed, used, 1)
    if not _equal(used, weights):
        raise _refused(name, "changes weights at a learning rate of 0")
    _zero_state(name, zeroed)
    _set_rates(zeroed, rates)
    _take_steps(name, straight, fresh, STEPS)
    _take_steps(name, zeroed, used, STEPS)
    if not _equal(used, fresh):
        raise _refused(name, "has state that does not begin at zero, or keeps it elsewhere than in its `state`")


def _refused(name: str, why: str) -> InputError:
    return InputError(
        f"optimizer.dense.name is '{name}', which {why}, so that it could not be resumed exactly; "
        "use another or change it (see docs/guides/dense_optimizers.md)"
    )


def _copies(weights: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(weight.detach().clone()) for weight in weights]


def _set_rates(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _take_steps(name: str, optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], steps: int) -> None:
    random = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=random).to(weight)
        try:
            optimizer.step(closure=None)  # pyrefly: ignore[no-matching-overload]
        except TypeError as error:
            raise _refused(name, f"cannot take a step without a closure ({error})") from error


def _zero_state(name: str, optimizer: torch.optim.Optimizer) -> None:
    for slots in optimizer.state.values():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                value.zero_()
            elif value is not None:
                raise _refused(name, f"keeps '{slot}' as {type(value).__name__} in its state instead of as a tensor")


def _equal(ours: list[nn.Parameter], theirs: list[nn.Parameter]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True) for one, other in pairs)
