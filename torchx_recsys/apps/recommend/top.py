"""The first k of all items, exactly: by scores rounded to float32, and of equal scores the item that comes first.

Scores of vectors are inner products in float64, rounded as in `trainer/metrics/retrieval.py`. As all of them would take
four times as long as in float32, float32 finds candidates, and float64 puts these in order. A bound of float32's error
proves that no other item belongs into the list; where it does not, all scores of that query are computed in float64.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from trainer.core.errors import InputError

NO_SCORE = float("-inf")  # of an item that is left out
GROUP = 128  # items of which only the greatest score is compared at first, a tenth of the time of comparing all
SPARE = 24  # candidates beyond k, so that the bound decides for nearly every query
BLOCK = 1 << 23  # number of scores that are computed together, 32 MiB
ROUNDING, TF32_ROUNDING = 2.0**-24, 2.0**-10  # greatest relative error of a factor
PLACES = (1 << 32) - 1  # the low half of a key


class TopItems:
    """Finds items by the inner product of vectors.

    Args:
        vectors: The vectors of the items, `[I, D]` float32.
    """

    def __init__(self, vectors: Tensor) -> None:
        self._items, dimension = vectors.shape
        self._vectors = functional.pad(vectors, (0, 0, 0, -self._items % GROUP))
        has_tf32 = vectors.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"
        longest = 1.001 * float(vectors.norm(dim=1).max())
        self._error = 2 * (dimension + 8) * (TF32_ROUNDING if has_tf32 else ROUNDING) * longest

    def find(self, queries: Tensor, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the places of the first k items of each query, `[Q, k]` int64, and their scores, float32.

        Args:
            queries: The vectors of the queries, `[Q, D]` float32, or `[Q, V, D]`, of which the closest one counts.
            k: How many items, at most `I`.
            excluded: Pairs of a query and the place of an item to leave out, `[N, 2]` int64. A list that is shorter for
                it ends with scores of NO_SCORE.
        """
        if queries.dim() == 3:
            return by_closest_vector(self.find, queries, k, excluded)
        size = max(1, BLOCK // len(self._vectors))
        found = [(excluded.new_empty(0, k), queries.new_empty(0, k))]
        for start in range(0, len(queries), size):
            here = excluded[(excluded[:, 0] >= start) & (excluded[:, 0] < start + size)]
            found.append(self._find(queries[start : start + size], k, here - here.new_tensor([start, 0])))
        places, scores = zip(*found, strict=True)
        return torch.cat(places), torch.cat(scores)

    def _find(self, queries: Tensor, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        if self._items <= k + SPARE:
            return first_of_all(self._all_scores(queries), k, excluded)
        candidates, rough = self._candidates(queries, k + SPARE, excluded)
        exact = (queries.double()[:, None] * self._vectors[candidates].double()).sum(2).float()
        places, scores = first_by_score(exact.masked_fill(rough == NO_SCORE, NO_SCORE), candidates, k)
        # No other item has a greater score than this.
        bound = (rough[:, -1].double() + self._error * queries.double().square().sum(1).sqrt()).float()
        unsure = ((scores[:, -1] <= bound) & (bound > NO_SCORE)).nonzero()[:, 0]
        if len(unsure):
            own = excluded[torch.isin(excluded[:, 0], unsure)]
            own = torch.stack([torch.searchsorted(unsure, own[:, 0].contiguous()), own[:, 1]], dim=1)
            places[unsure], scores[unsure] = first_of_all(self._all_scores(queries[unsure]), k, own)
        return places, scores

    def _candidates(self, queries: Tensor, number: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the places of the items with the greatest rough scores and these, `[Q, C]`, in descending order."""
        scores = queries @ self._vectors.mT
        scores[:, self._items :] = NO_SCORE
        scores[excluded[:, 0], excluded[:, 1]] = NO_SCORE
        groups = scores.view(len(queries), -1, GROUP)
        # The first n items are in the n groups whose greatest scores are the greatest.
        best = groups.amax(2).topk(min(number, groups.shape[1])).indices
        rough, places = groups.gather(1, best[:, :, None].expand(-1, -1, GROUP)).flatten(1).topk(number)
        return best.gather(1, places // GROUP) * GROUP + places % GROUP, rough

    def _all_scores(self, queries: Tensor) -> Tensor:
        step, wide = max(1, BLOCK // len(queries) // 2), queries.double()
        vectors = self._vectors[: self._items]
        return torch.cat([(wide @ part.double().mT).float() for part in vectors.split(step)], dim=1)


def first_of_all(scores: Tensor, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the places of the first k items by their scores, `[Q, I]`; as `TopItems.find`, but for `queries`."""
    scores = scores.index_put((excluded[:, 0], excluded[:, 1]), scores.new_tensor(NO_SCORE))
    return first_by_score(scores, torch.arange(scores.shape[1], device=scores.device).expand_as(scores), k)


def by_closest_vector(
    find: Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]], queries: Tensor, k: int, excluded: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the first k items of queries that have several vectors, by the greatest of an item's inner products.

    Args:
        find: Finds the first items of single vectors, as `TopItems.find`. No other item can be among those of a query.
        queries: The vectors of the queries, `[Q, V, D]`.
        k: How many items.
        excluded: As for `TopItems.find`.
    """
    number = queries.shape[1]
    vectors = excluded[:, :1] * number + torch.arange(number, device=excluded.device)
    pairs = torch.stack([vectors, excluded[:, 1:].expand_as(vectors)], dim=2).flatten(0, 1)
    places, scores = (one.view(-1, number * k) for one in find(queries.flatten(0, 1), k, pairs))
    places, scores = first_by_score(scores, places, number * k)
    # Of an item that several vectors find, only the first entry stays.
    order = places.argsort(dim=1, stable=True)
    of_item = places.gather(1, order)
    is_again = functional.pad(of_item[:, 1:] == of_item[:, :-1], (1, 0))
    is_again = is_again.gather(1, order.argsort(dim=1))
    return first_by_score(scores.masked_fill(is_again, NO_SCORE), places, k)


def checked(values: Tensor, what: str) -> Tensor:
    """Returns values; refuses those of a model that are not finite.

    Raises:
        InputError: A value is infinite or not a number.
    """
    if not values.isfinite().all():
        raise InputError(f"the model computes a value {what} that is not finite; take another checkpoint")
    return values


def first_by_score(scores: Tensor, places: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the places and scores of the first k, in descending order, of equal scores by place; `[Q, N]` each."""
    bits = (scores + 0.0).contiguous().view(torch.int32)  # of -0.0, which would be less than 0.0
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # integers in the order of the numbers
    keys = ordered.long() * (PLACES + 1) + (PLACES - places)
    chosen = keys.topk(k).indices
    return places.gather(1, chosen), scores.gather(1, chosen)
