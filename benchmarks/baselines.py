"""Predictions without a network, as baselines for models: popularity and logistic regression."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.config.data import DataConfig

PRIOR_RATINGS = 10  # number of ratings at the mean rate that popularity adds to an item
PENALTY = 1.0  # weight of the penalty of logistic regression: scikit-learn's default


@dataclass(frozen=True)
class Samples:
    """Features of samples, in the form that logistic regression takes.

    Attributes:
        dense: Dense features, `[N, D]` float64.
        ids: Ids of all sparse features, one feature after the other, each with its own range of ids.
        samples: The sample of each id.
    """

    dense: Tensor
    ids: Tensor
    samples: Tensor


def read_samples(table: pa.Table, data: DataConfig) -> Samples:
    """Reads the features of a table; transforms dense features by the configuration."""
    dense = [_transformed(table[name], feature) for name, feature in data.dense.items()]
    ids, samples, start = [], [], 0
    for name, feature in data.sparse.items():
        column = table[name].combine_chunks()
        lists = pa.types.is_list(column.type)
        lengths = column.value_lengths().to_numpy() if lists else np.ones(len(column), np.int64)
        ids.append((column.flatten() if lists else column).to_numpy().astype(np.int64) + start)
        samples.append(np.repeat(np.arange(len(column)), lengths))
        start += feature.rows
    joined = (torch.from_numpy(np.concatenate(parts)) for parts in (ids, samples))
    return Samples(torch.from_numpy(np.stack(dense, axis=1)), *joined)


def _transformed(column: pa.ChunkedArray, feature: Any) -> np.ndarray:
    values = column.cast(pa.float64()).fill_null(feature.missing).to_numpy()
    return ((np.log1p(values) if feature.transform == "log1p" else values) - feature.mean) / feature.std


class LogisticRegression(nn.Module):
    """A weight for each dense feature and id, and a bias. The penalty is half the squared norm of the weights.

    Args:
        dense: Dense features.
        ids: Ids of all sparse features together.
    """

    def __init__(self, dense: int, ids: int) -> None:
        super().__init__()
        self.dense, self.ids = (nn.Parameter(torch.zeros(count, dtype=torch.float64)) for count in (dense, ids))
        self.bias = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, samples: Samples) -> Tensor:
        """Returns the logit of each sample, `[N]`."""
        of_ids = torch.zeros(len(samples.dense), dtype=torch.float64)
        return samples.dense @ self.dense + of_ids.index_add(0, samples.samples, self.ids[samples.ids]) + self.bias

    def objective(self, samples: Samples, labels: Tensor) -> Tensor:
        """Returns the sum of the samples' losses and the penalty."""
        loss = functional.binary_cross_entropy_with_logits(self(samples), labels, reduction="sum")
        return loss + PENALTY / 2 * (self.dense.square().sum() + self.ids.square().sum())

    def fit(self, samples: Samples, labels: Tensor) -> "LogisticRegression":
        """Minimizes the objective and returns itself."""
        optimizer = torch.optim.LBFGS(self.parameters(), max_iter=200, line_search_fn="strong_wolfe")

        def evaluate() -> Tensor:
            optimizer.zero_grad()
            objective = self.objective(samples, labels)
            objective.backward()
            return objective

        optimizer.step(evaluate)
        return self


def popularity(items: np.ndarray, labels: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the label rate of each wanted item among labeled items, after adding ratings of the mean rate."""
    rows = 1 + max(items.max(), wanted.max())
    count, sums = np.bincount(items, minlength=rows), np.bincount(items, labels, minlength=rows)
    return ((sums + PRIOR_RATINGS * labels.mean()) / (count + PRIOR_RATINGS))[wanted]


def recall_of_counts(counts: np.ndarray, wanted: np.ndarray, k: int) -> float:
    """Returns the share of wanted items among the k items of greatest count; ties count as the mean over all orders.

    Args:
        counts: The count of every item, `[I]`.
        wanted: Places of the wanted items, `[N]`.
        k: Number of shown items.
    """
    above = (counts[None] > counts[wanted][:, None]).sum(1)
    ties = (counts[None] == counts[wanted][:, None]).sum(1)
    return float(((k - above) / ties).clip(0, 1).mean())


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the probability that a positive sample scores above a negative sample, ties counting half."""
    _, which, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]
    positives = labels > 0.5
    wins = ranks[positives].sum() - positives.sum() * (positives.sum() + 1) / 2
    return wins / (positives.sum() * (~positives).sum())
