"""Losses of single samples, by name: of a prediction and a label, the loss of each sample, `[B]`."""

from collections.abc import Callable

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
    """Returns the cross-entropy of logits `[B, C]` and labels that are numbers of classes, NaN where one is not."""
    known = are_classes(label, logits.shape[1])  # beyond them a GPU would end the process without a word about data
    number = label.long().where(known, 0)
    each = functional.cross_entropy(logits, number, reduction="none", label_smoothing=label_smoothing)
    return each.where(known, torch.nan)


def are_classes(label: Tensor, classes: int) -> Tensor:
    """Returns which labels are numbers of classes, `[B]`, from 0 on."""
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
"""Each takes a prediction, a label, and those of a task's options that `LOSS_KINDS` lists for it."""
