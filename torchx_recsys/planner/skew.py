"""Skewed ids: the number of distinct rows that they touch, and the hit rate of a cache of popular rows.

Ids follow a Zipf distribution: the id of rank r is drawn in proportion to r to the power of minus an exponent. Sums
over the ranks of a table are exact for popular ids. For the other ids, whose neighbouring terms hardly differ, sums are
integrals, each over ranks that at most double, so that a billion ranks take a few hundred terms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchx_recsys.planner.tables import Options, Table, Zipf

EXACT = 256  # number of ranks summed one by one; the integral over the others is off by a millionth
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
NEVER = 2.0**-53  # a probability treated as zero


@dataclass(frozen=True)
class _Ranks:
    """A selection of the ranks of ids by popularity.

    Attributes:
        rank: Selected ranks, between which terms hardly differ, `[P]`.
        weight: Number of ranks that each stands for, `[P]`.
    """

    rank: np.ndarray
    weight: np.ndarray

    def share(self, zipf: Zipf) -> np.ndarray:
        """Returns the part of draws that hit the id of each rank, `[P]`."""
        drawn = np.where(self.rank < zipf.ids + 0.5, self.rank**-zipf.exponent, 0.0)
        return drawn / (self.weight @ drawn)


def _ranks(*ends: int) -> _Ranks:
    """Selects ranks up to the largest end; no selected rank stands for ranks on both sides of an end."""
    rank, weight = [np.arange(1.0, min(EXACT, max(ends)) + 1)], [np.ones(min(EXACT, max(ends)))]
    for start, stop in pairwise(sorted({EXACT, *(end for end in ends if end > EXACT)})):
        edges = np.geomspace(start + 0.5, stop + 0.5, int(np.ceil(np.log2(stop / start))) + 1)
        middle, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
        rank.append((middle[:, None] + half[:, None] * NODES).ravel())
        weight.append((half[:, None] * WEIGHTS).ravel())
    return _Ranks(np.concatenate(rank), np.concatenate(weight))


def unique_ids(draws: np.ndarray, of: Sequence[Zipf]) -> np.ndarray:
    """Returns the expected number of distinct ids that draws hit.

    Args:
        draws: Draws of each feature, `[N, F]`.
        of: Distribution of each feature's ids; all features have the same popular ids.
    """
    ranks = _ranks(*(zipf.ids for zipf in of))
    missed = np.log1p(-np.minimum([ranks.share(zipf) for zipf in of], 1 - NEVER))
    return -np.expm1(draws @ missed) @ ranks.weight


def ids_behind(distinct: int, draws: float, exponent: float, most: int) -> int:
    """Estimates the number of ids: the number for which the draws are expected to hit `distinct` ids.

    Args:
        distinct: Number of distinct ids seen.
        draws: Number of ids seen.
        exponent: Zipf's exponent.
        most: Largest possible number of ids.
    """
    low, high = max(1, min(distinct, most)), most
    while low < high:
        middle = (low + high) // 2
        enough = unique_ids(np.array([[draws]]), [Zipf(exponent, middle)])[0] >= distinct
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def touched_rows(
    uniform: np.ndarray, samples: np.ndarray, parts: np.ndarray, of: Options, tables: Sequence[Table]
) -> np.ndarray:
    """Returns the rows that a step touches in a shard of each option, `[O]`; row shards have an equal part each.

    Args:
        uniform: The rows touched by uniform draws, `[O]`: kept for tables without skew.
        samples: Samples that a shard looks up, `[O]`.
        parts: Shards that share the rows, `[O]`.
        of: The options.
        tables: The tables.
    """
    found = uniform.copy()
    for number, table in enumerate(tables):
        if table.skew:
            here = of.table == number
            sizes, size = np.unique(samples[here], return_inverse=True)
            found[here] = unique_ids(np.outer(sizes, table.hotness), table.skew)[size] / parts[here]
    return found


def hit_rates(options: Options, tables: Sequence[Table]) -> np.ndarray:
    """Returns the part of lookups that each option's cache serves, `[O]`; without skew, its part of the rows."""
    found = options.cached.copy()
    for number, table in enumerate(tables):
        if table.skew:
            for option in np.flatnonzero((options.table == number) & (options.cached > 0)):
                found[option] = _hit_rate(table, int(options.cached[option] * table.rows))
    return found


def _hit_rate(table: Table, slots: int) -> float:
    ranks = _ranks(max(1, slots), *(zipf.ids for zipf in table.skew))
    share = np.array([ranks.share(zipf) for zipf in table.skew])
    return float(np.average(share @ (ranks.weight * (ranks.rank < slots + 0.5)), weights=table.hotness))
