"""Table optimizers as their papers and FBGEMM's GPU kernels define them, in float64, unsharded, for tests.

Nothing here is the trainer's. A table is `[rows, column shards, columns of a shard]`: what is kept or normalized by row
is so by row and column shard.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

State = dict[str, Tensor]


def norm(values: Tensor) -> Tensor:
    return values.square().sum(2, keepdim=True).sqrt()


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """1 where a norm is 0, as in the papers' own code."""
    return torch.where((above == 0) | (below == 0), torch.ones_like(above), above / below)


def sgd(weight, gradient, state, step, lr):
    return weight - lr * gradient


def adagrad(weight, gradient, state, step, lr, eps=1e-8, initial_accumulator=0.0):
    start = torch.full_like(weight, initial_accumulator)
    state["momentum1"] = state.get("momentum1", start) + gradient**2
    return weight - lr * gradient / (state["momentum1"].sqrt() + eps)


def rowwise_adagrad(
    weight,
    gradient,
    state,
    step,
    lr,
    eps=1e-8,
    initial_accumulator=0.0,
    weight_decay=0.0,
    weight_decay_mode="decoupled",
):
    if weight_decay_mode == "l2":
        gradient = gradient + weight_decay * weight
    else:
        weight = weight - lr * weight_decay * weight
    squares = (gradient**2).mean(2)
    state["momentum1"] = state.get("momentum1", torch.full_like(squares, initial_accumulator)) + squares
    return weight - lr * gradient / (state["momentum1"].sqrt()[:, :, None] + eps)


def direction(weight, gradient, state, step, rowwise, eps, beta1, beta2, weight_decay):
    squares = (gradient**2).mean(2) if rowwise else gradient**2
    first = beta1 * state.get("momentum1", torch.zeros_like(gradient)) + (1 - beta1) * gradient
    second = beta2 * state.get("exp_avg_sq", torch.zeros_like(squares)) + (1 - beta2) * squares
    state |= {"momentum1": first, "exp_avg_sq": second}
    root = torch.sqrt(second / (1 - math.pow(beta2, step)))
    root = root[:, :, None] if rowwise else root
    return first / (1 - math.pow(beta1, step)) / (root + eps) + weight_decay * weight


def adam(weight, gradient, state, step, lr, eps=1e-8, beta1=0.9, beta2=0.999, weight_decay=0.0, rowwise=False):
    return weight - lr * direction(weight, gradient, state, step, rowwise, eps, beta1, beta2, weight_decay)


def lamb(weight, gradient, state, step, lr, eps=1e-8, beta1=0.9, beta2=0.999, weight_decay=0.0, rowwise=False):
    update = direction(weight, gradient, state, step, rowwise, eps, beta1, beta2, weight_decay)
    return weight - lr * ratio(norm(weight), norm(update)) * update


def lars_sgd(weight, gradient, state, step, lr, momentum=0.9, eta=0.001, weight_decay=0.0):
    local = lr * eta * ratio(norm(weight), norm(gradient) + weight_decay * norm(weight))
    before = state.get("momentum1", torch.zeros_like(weight))
    state["momentum1"] = momentum * before + local * (gradient + weight_decay * weight)
    return weight - state["momentum1"]


def partial_rowwise_adam(*arguments, **options):
    return adam(*arguments, **options, rowwise=True)


def partial_rowwise_lamb(*arguments, **options):
    return lamb(*arguments, **options, rowwise=True)


OPTIMIZERS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in (
        sgd,
        adagrad,
        rowwise_adagrad,
        adam,
        lamb,
        lars_sgd,
        partial_rowwise_adam,
        partial_rowwise_lamb,
    )
}


class ReferenceTable:
    """A table and its optimizer.

    Args:
        weight: The table, updated in place.
        shards: Column shards.
        name: The optimizer.
        learning_rate: The rate by step.
        options: The optimizer's other options.
    """

    def __init__(
        self, weight: Tensor, shards: int, name: str, learning_rate: Callable[[int], float], **options: float
    ) -> None:
        self.weight, self.shards = weight, shards
        self._update, self._rate, self._options = OPTIMIZERS[name], learning_rate, options
        self._state: State = {}

    @torch.no_grad()
    def step(self, step: int, touched: Tensor, gradient: Tensor) -> None:
        """Takes a step; `touched [rows]` are the rows that a sample looked up."""
        view = (len(self.weight), self.shards, -1)
        weight, after = self.weight.view(view), dict(self._state)
        new = self._update(weight, gradient.view(view), after, step, self._rate(step), **self._options)
        for slot, value in after.items():
            start = self._options.get("initial_accumulator", 0.0)
            before = self._state.get(slot, torch.full_like(value, start))
            self._state[slot] = torch.where(touched.view(-1, *[1] * (value.dim() - 1)), value, before)
        weight.copy_(torch.where(touched.view(-1, 1, 1), new, weight))

    def slots(self) -> State:
        """Returns the state as checkpoints lay it out: row-wise state column shard after column shard."""
        return {
            slot: value.T.reshape(-1) if value.dim() == 2 else value.reshape(self.weight.shape)
            for slot, value in self._state.items()
        }
