"""Predictions that are logarithms of probabilities, exact where the probabilities themselves would be rounded."""

from math import log

import torch
from torch import Tensor


def to_logit(log_probability: Tensor) -> Tensor:
    """Returns the logits of probabilities that are given by their logarithms, as a sum of log-sigmoids is one.

    With x the logarithm, binary's -(y x + (1 - y) log(1 - e^x)) is the cross-entropy of the logit x - log(1 - e^x).
    """
    # At 0 the logit were infinite; a float32 this close to it has a logit of 87.
    log_probability = log_probability.clamp(max=-torch.finfo(log_probability.dtype).tiny)
    return log_probability - log1mexp(log_probability)


def log1mexp(x: Tensor) -> Tensor:
    """Returns log(1 - e^x) of x < 0 (Maechler, "Accurately computing log(1 - exp(-|a|))", 2012)."""
    near = x > -log(2)
    # Of `torch.where`, the branch that is not taken must not have an infinite gradient either.
    return torch.where(near, (-x.where(near, -1.0).expm1()).log(), (-x.where(~near, -1.0).exp()).log1p())
