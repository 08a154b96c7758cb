"""Metrics of the rank of a query's item among all items of the catalogue.

Every relevant sample, with a label above 0, is a query, and its item is the item to be found. An item's score is its
inner product with the query's vector, the greatest one if the query has several. Items with equal scores count as the
mean over all their orders, as in groups.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from trainer.metrics.base import Samples, Sums, ratio
from trainer.metrics.seen_items import SeenItems

BLOCK = 1 << 22  # number of scores that are computed together


class ItemVectors(NamedTuple):
    """The items of the catalogue, `I`.

    Attributes:
        ids: Ids of the items, sorted, `[I]` int64.
        vectors: Vectors of the items, `[I, D]` float32.
        seen: Finds the items that a query leaves out; None to rank all.
    """

    ids: Tensor
    vectors: Tensor
    seen: SeenItems | None = None


class ItemRanks(Sums):
    """The weight of the queries by the rank of their item, `[I + 2]`.

    The first `I + 1` values are the differences between the weight at a rank and the weight at the rank before, so that
    a tie of any size changes two of them. The last value is the weight of all queries; an item outside the catalogue
    has no rank.

    Args:
        device: Device of the predictions.
        items: The items to rank.
    """

    def __init__(self, device: torch.device, items: ItemVectors) -> None:
        super().__init__(device, (len(items.ids) + 2,))
        self._items = items

    def add(self, samples: Samples) -> None:
        """Adds the relevant samples of this rank."""
        assert samples.items is not None
        relevant = (samples.weights > 0) & (samples.labels > 0)
        weights, wanted = samples.weights[relevant], samples.items[relevant]
        self.state[-1] += weights.sum()
        place = torch.searchsorted(self._items.ids, wanted).clamp(max=len(self._items.ids) - 1)
        known = self._items.ids[place] == wanted
        queries = relevant.nonzero()[:, 0][known]
        above, ties = self._compare(samples.predictions[queries, :-1], place[known], self._left_out(samples, queries))
        each = weights[known] / ties
        self.state.index_add_(0, above, each)
        self.state.index_add_(0, above + ties, -each)

    def _left_out(self, samples: Samples, queries: Tensor) -> Tensor:
        """Returns pairs of a query and the place of an item that it leaves out, `[N, 2]`."""
        if self._items.seen is None or samples.sparse is None:
            return queries.new_empty(0, 2)
        number = torch.full_like(samples.weights, -1, dtype=torch.int64)
        number[queries] = torch.arange(len(queries), device=queries.device)
        sample, place = self._items.seen.of(samples.sparse).unbind(1)
        pairs = torch.stack([number[sample], place], dim=1)
        return pairs[pairs[:, 0] >= 0]

    def _compare(self, queries: Tensor, place: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the number of items above the item at `place`, and the number level with it, itself included.

        Args:
            queries: The vectors of the queries, `[N, Q, D]`.
            place: The place of each query's item, `[N]`.
            left_out: Pairs of a query and the place of an item that it leaves out.
        """
        own = _scores(queries, self._items.vectors[place][:, None]).amax(1)
        above, ties = torch.zeros_like(place), torch.ones_like(place)
        step = max(1, BLOCK // max(1, len(queries) * queries.shape[1]))
        for start in range(0, len(self._items.ids), step):
            scores = _scores(queries.flatten(0, 1), self._items.vectors[start : start + step])
            scores = scores.unflatten(0, queries.shape[:2]).amax(1)
            others = torch.arange(start, start + scores.shape[1], device=place.device) != place[:, None]
            here = left_out[(left_out[:, 1] >= start) & (left_out[:, 1] < start + scores.shape[1])]
            others[here[:, 0], here[:, 1] - start] = False
            level = scores == own
            above += (others & ~level & ~(scores < own)).sum(1)  # so that NaN is not found
            ties += (others & level).sum(1)
        return above, ties


def _scores(queries: Tensor, vectors: Tensor) -> Tensor:
    # In float64 and rounded, so that equal vectors tie wherever they stand in a product of matrices.
    return (queries @ vectors.double().mT).float()


def recall(ranks: Tensor, k: int) -> dict[str, float]:
    """Returns the share of the queries whose item is among the first k of all items."""
    return ratio(ranks[:-1].cumsum(0)[:k].sum().item(), ranks[-1].item())


def ndcg(ranks: Tensor, k: int) -> dict[str, float]:
    """Returns the mean of 1 / log2(1 + rank) of the query's item, 0 where it is not among the first k of all items.

    A query has one item to be found, so that the best order has a gain of 1.
    """
    weights = ranks[:-1].cumsum(0)[:k]
    gains = 1 / torch.arange(2, len(weights) + 2, dtype=weights.dtype).log2()
    return ratio((weights * gains).sum().item(), ranks[-1].item())


def mrr(ranks: Tensor) -> dict[str, float]:
    """Returns the mean of one over the rank of the query's item among all items."""
    weights = ranks[:-1].cumsum(0)
    reciprocal = 1 / torch.arange(1, len(weights) + 1, dtype=weights.dtype)
    return ratio((weights * reciprocal).sum().item(), ranks[-1].item())
