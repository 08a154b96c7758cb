"""Updates of a table's touched rows, exact to the kernels that FBGEMM fuses into backward on a GPU.

Each takes the rows `[R, D]`, their gradients `[R, D]` and the same rows of the optimizer's state, which it changes, and
returns the new rows. As on a GPU, an update does not depend on other rows or other column shards.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

State = dict[str, Tensor]


@dataclass(frozen=True)
class UpdateOptions:
    """Options of an update, under the names that FBGEMM gives them.

    Attributes:
        lr: The learning rate.
        step: The number of this step among those taken, for Adam's bias correction; the first is 1.
        l2: Whether weight decay is added to the gradient.
    """

    lr: float
    step: int
    eps: float
    beta1: float
    beta2: float
    momentum: float
    eta: float
    weight_decay: float
    l2: bool


Update = Callable[[Tensor, Tensor, State, UpdateOptions], Tensor]


def sgd(rows: Tensor, gradient: Tensor, state: State, options: UpdateOptions) -> Tensor:
    """Plain gradient descent."""
    return rows - options.lr * gradient


def rowwise_adagrad(rows: Tensor, gradient: Tensor, state: State, options: UpdateOptions) -> Tensor:
    """Adagrad with one accumulator per row, the mean of the squared gradient, and weight decay."""
    if options.weight_decay and options.l2:
        gradient = gradient + options.weight_decay * rows
    elif options.weight_decay:
        rows = rows * (1 - options.lr * options.weight_decay)
    total = state["sum"].add_(gradient.square().mean(1))
    return rows.addcdiv(gradient, total.sqrt().add_(options.eps)[:, None], value=-options.lr)


def adam(rows: Tensor, gradient: Tensor, state: State, options: UpdateOptions) -> Tensor:
    """Adam (Kingma and Ba, arXiv:1412.6980) with decoupled weight decay; its second moment may be one per row."""
    return rows - options.lr * _adam_direction(rows, gradient, state, options)


def lamb(rows: Tensor, gradient: Tensor, state: State, options: UpdateOptions) -> Tensor:
    """LAMB (You et al., arXiv:1904.00962), where each row is a layer; its second moment may be one per row."""
    direction = _adam_direction(rows, gradient, state, options)
    return rows - options.lr * _trust(rows.norm(dim=1), direction.norm(dim=1)) * direction


def lars_sgd(rows: Tensor, gradient: Tensor, state: State, options: UpdateOptions) -> Tensor:
    """LARS (You et al., arXiv:1708.03888), where each row is a layer."""
    norm = rows.norm(dim=1)
    trust = _trust(norm, gradient.norm(dim=1) + options.weight_decay * norm)
    step = options.lr * options.eta * trust * (gradient + options.weight_decay * rows)
    return rows - state["momentum_buffer"].mul_(options.momentum).add_(step)


def _adam_direction(rows: Tensor, gradient: Tensor, state: State, options: UpdateOptions) -> Tensor:
    rowwise = state["exp_avg_sq"].dim() == 1
    squares = gradient.square().mean(1) if rowwise else gradient.square()
    first = state["exp_avg"].mul_(options.beta1).add_(gradient, alpha=1 - options.beta1)
    second = state["exp_avg_sq"].mul_(options.beta2).add_(squares, alpha=1 - options.beta2)
    root = (second / (1 - options.beta2**options.step)).sqrt() + options.eps
    mean = first / (1 - options.beta1**options.step)
    return mean / (root[:, None] if rowwise else root) + options.weight_decay * rows


def _trust(norm: Tensor, of_update: Tensor) -> Tensor:
    """Returns the ratio of two norms `[R]` as `[R, 1]`, 1 where one is 0: FBGEMM divides by it, to NaN in the row."""
    return torch.where((norm > 0) & (of_update > 0), norm / of_update, 1.0)[:, None]
