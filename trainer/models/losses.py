"""Losses of single samples, by name. Each takes predictions and labels, and returns the loss of each sample, `[B]`."""

from collections.abc import Callable
from math import log

import torch
from torch import Tensor
from torch.nn import functional


def binary(logit: Tensor, label: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Returns the binary cross-entropy of logits `[B]` and labels in [0, 1]."""
    if label_smoothing:
        label = label * (1 - label_smoothing) + label_smoothing / 2
    return functional.binary_cross_entropy_with_logits(logit, label, reduction="none")


def focal(logit: Tensor, label: Tensor, gamma: float = 2.0, alpha: float = 0.5) -> Tensor:
    """Returns the binary cross-entropy, times a weight that falls as a sample is predicted better (arXiv:1708.02002).

    The weight is a constant: unlike in the paper, gradients do not flow through it.
    """
    probability = logit.detach().sigmoid()
    positive, negative = label * (1 - probability) ** gamma, (1 - label) * probability**gamma
    return (alpha * positive + (1 - alpha) * negative) * binary(logit, label)


def softmax(logits: Tensor, label: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Returns the cross-entropy of logits `[B, C]` and labels that are class numbers; NaN where a label is not."""
    known = are_classes(
        label, logits.shape[1]
    )  # a GPU would end the process at a wrong class, without a word about data
    number = label.long().where(known, 0)
    each = functional.cross_entropy(logits, number, reduction="none", label_smoothing=label_smoothing)
    return each.where(known, torch.nan)


def are_classes(label: Tensor, classes: int) -> Tensor:
    """Returns which labels are class numbers, `[B]`; they count from 0."""
    return (label >= 0) & (label < classes) & (label == label.floor())


def squared(value: Tensor, label: Tensor) -> Tensor:
    """Returns the squared error of values `[B]`."""
    return functional.mse_loss(value, label, reduction="none")


def absolute(value: Tensor, label: Tensor) -> Tensor:
    """Returns the absolute error of values `[B]`."""
    return functional.l1_loss(value, label, reduction="none")


def huber(value: Tensor, label: Tensor, delta: float = 1.0) -> Tensor:
    """Returns half the squared error of values `[B]`, linear beyond an error of `delta`."""
    return functional.huber_loss(value, label, reduction="none", delta=delta)


LOSSES: dict[str, Callable[..., Tensor]] = {
    loss.__name__: loss for loss in (binary, focal, softmax, squared, absolute, huber)
}
"""Each takes predictions, labels, and the options of a task that `LOSS_KINDS` lists for it."""


def to_logit(log_probability: Tensor) -> Tensor:
    """Returns the logits of probabilities given by their logarithms, exact where the probabilities would be rounded.

    With x the logarithm, binary's -(y x + (1 - y) log(1 - e^x)) is the cross-entropy of the logit x - log(1 - e^x).
    """
    # At 0 the logit would be infinite; a float32 this close to 0 has a logit of 87.
    log_probability = log_probability.clamp(max=-torch.finfo(log_probability.dtype).tiny)
    return log_probability - log1mexp(log_probability)


def log1mexp(x: Tensor) -> Tensor:
    """Returns log(1 - e^x) of x < 0 (Maechler, "Accurately computing log(1 - exp(-|a|))", 2012)."""
    near = x > -log(2)
    # The branch of `torch.where` that is not taken must not have an infinite gradient either.
    return torch.where(near, (-x.where(near, -1.0).expm1()).log(), (-x.where(~near, -1.0).exp()).log1p())
