"""Losses as their papers write them, sample by sample: slow, not stable, and for float64 only.

Each takes the predictions, labels and groups of samples that are compared, `[N, ...]`, all of which count, and returns
`[N]`.
"""

import itertools

import torch
from torch import Tensor


def binary(z: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    y, p = y * (1 - label_smoothing) + label_smoothing / 2, 1 / (1 + torch.exp(-z))
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p))


def focal(z: Tensor, y: Tensor, gamma: float = 2.0, alpha: float = 0.5) -> Tensor:
    p = 1 / (1 + torch.exp(-z))
    with torch.no_grad():
        positive, negative = alpha * (1 - p) ** gamma, (1 - alpha) * p**gamma
    return -(positive * y * torch.log(p) + negative * (1 - y) * torch.log(1 - p))


def log_probability(x: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    y = y * (1 - label_smoothing) + label_smoothing / 2
    return -(y * x + (1 - y) * torch.log(1 - torch.exp(x)))


def softmax(z: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
    p = torch.exp(z) / torch.exp(z).sum(1, keepdim=True)
    target = torch.full_like(p, label_smoothing / p.shape[1])
    target[torch.arange(len(y)), y.long()] += 1 - label_smoothing
    return -(target * torch.log(p)).sum(1)


def squared(v: Tensor, y: Tensor) -> Tensor:
    return (v - y) ** 2


def absolute(v: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt((v - y) ** 2)


def huber(v: Tensor, y: Tensor, delta: float = 1.0) -> Tensor:
    error = torch.sqrt((v - y) ** 2)
    return torch.where(error <= delta, error**2 / 2, delta * (error - delta / 2))


def poisson(z: Tensor, y: Tensor) -> Tensor:
    return torch.exp(z) - y * z


def jrc(z: Tensor, y: Tensor, group: Tensor, alpha: float = 0.5) -> Tensor:
    each = []
    for i, kind in enumerate(y.long().tolist()):
        mine = torch.exp(z[i, kind])
        calibration = mine / torch.exp(z[i]).sum()
        ranking = mine / torch.exp(z[group == group[i], kind]).sum()
        each.append(-alpha * torch.log(calibration) - (1 - alpha) * torch.log(ranking))
    return torch.stack(each)


def bpr(s: Tensor, y: Tensor, group: Tensor) -> Tensor:
    each = []
    for i in range(len(y)):
        lower = s[(group == group[i]) & (y < y[i])]
        each.append(torch.log(1 + torch.exp(lower - s[i])).mean() if len(lower) else s[i] * 0)
    return torch.stack(each)


def in_batch_softmax(vectors: Tensor, y: Tensor, item: Tensor, temperature: float = 1.0) -> Tensor:
    each = []
    for i in range(len(y)):
        scores = torch.exp((vectors[i, 0] * vectors[:, 1]).sum(1) / temperature)
        each.append(-y[i] * torch.log(scores[i] / (scores[i] + scores[item != item[i]].sum())))
    return torch.stack(each)


def shortest(vectors: Tensor) -> Tensor:
    """Returns the weights of the shortest convex combination of vectors `[T, D]`, trying every set of them."""
    best, found = torch.inf, torch.zeros(len(vectors)).double()
    gram = vectors @ vectors.T
    for size in range(1, len(vectors) + 1):
        for chosen in map(list, itertools.combinations(range(len(vectors)), size)):
            part = gram[chosen][:, chosen]
            conditions = torch.zeros(size + 1, size + 1).double()  # of Lagrange: equal slopes, and a sum of 1
            conditions[:size, :size], conditions[size, :size], conditions[:size, size] = part, 1, 1
            right = torch.zeros(size + 1).double()
            right[size] = 1
            weights = (torch.linalg.pinv(conditions) @ right)[:size]
            if (weights >= -1e-12).all() and weights @ part @ weights < best - 1e-15:
                best, found = weights @ part @ weights, torch.zeros(len(vectors)).double()
                found[chosen] = weights
    return found
