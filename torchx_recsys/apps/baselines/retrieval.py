"""Items for a query without a model: popularity, neighbours of its items, EASE, decayed co-occurrence."""

from collections.abc import Callable
from itertools import product

import numpy as np
from scipy import sparse

from torchx_recsys.apps.baselines.items import Items
from torchx_recsys.apps.baselines.problem import Fitted, LeftOut, Predict, Problem
from torchx_recsys.apps.baselines.rates import Groups
from torchx_recsys.apps.baselines.rows import Table

NEIGHBOURS = (20, 100, 500)
EASE_PENALTIES = (1000.0, 300.0, 100.0, 30.0, 10.0)
EASE_ITEMS = 10_000  # whose matrix takes 0.8 GB, and its inverse a minute
DECAYS = {"pairs": (0.8, 0.9), "query": (0.5, 0.7, 0.8), "popularity": (0.3, 0.5)}
PAIRS = 1 << 23  # pairs of items that are counted together
ITEMS_OF_A_USER = 500  # the last ones, as pairs grow with the square


def popularity(problem: Problem) -> Fitted:
    """The same items for all: those of the most rows of data.train."""
    scores = counts(problem)
    return Fitted(lambda table: np.tile(scores, (len(table), 1)))


def item_knn(problem: Problem) -> Fitted:
    """The nearest neighbours of the items that the query has had, by the cosine of their users."""
    together, of = co_occurrence(problem)
    length = np.sqrt(np.maximum(together.diagonal(), 1))
    cosine = sparse.csr_matrix(together.multiply(1 / length[:, None]).multiply(1 / length))
    cosine.setdiag(0)
    cosine.eliminate_zeros()

    def fit(neighbours: int) -> Predict:
        nearest = most_of_each_row(cosine, neighbours)
        return lambda table: (of(table) @ nearest).toarray()

    neighbours, predict = problem.choose(NEIGHBOURS, fit)
    return Fitted(predict, f"{neighbours} neighbours")


def ease(problem: Problem) -> Fitted:
    """EASE, a linear model between items in closed form (Steck, WWW 2019)."""
    items = items_of(problem)
    occur = np.flatnonzero(counts(problem))
    if len(occur) > EASE_ITEMS:
        raise LeftOut(
            f"{len(occur):,} items occur in data.train, more than {EASE_ITEMS:,}, whose matrix would take "
            f"{8 * len(occur) ** 2 / 2**30:.1f} GiB"
        )
    together, of = co_occurrence(problem)
    gram = sparse.csr_matrix(sparse.csr_matrix(together[occur])[:, occur]).toarray()

    def fit(penalty: float) -> Predict:
        weights = ease_weights(gram, penalty)

        def predict(table: Table) -> np.ndarray:
            scores = np.full((len(table), len(items)), -np.inf)
            scores[:, occur] = of(table)[:, occur] @ weights
            return scores

        return predict

    penalty, predict = problem.choose(EASE_PENALTIES, fit)
    return Fitted(predict, f"penalty {penalty:g}")


def decayed_co_occurrence(problem: Problem) -> Fitted:
    """What followed the last items of the query in data.train, nearer ones counting more, and popular ones less."""
    items = items_of(problem)
    if items.history is None:
        raise LeftOut("no feature has the items that a query had before, in their order")
    often = np.maximum(counts(problem), 1)
    followed = {decay: followers(problem, lambda distance, d=decay: d ** (distance - 1)) for decay in DECAYS["pairs"]}

    def fit(option: tuple[float, ...]) -> Predict:
        of_pairs, of_query, power = option

        def predict(table: Table) -> np.ndarray:
            found = items.earlier(table)
            queries = items.matrix(len(table), found, of_query ** (found.distance - 1.0))
            return (queries @ followed[of_pairs]).toarray() * often**-power

        return predict

    (of_pairs, of_query, power), predict = problem.choose([*product(*DECAYS.values())], fit, every=True)
    return Fitted(predict, f"decays {of_pairs:g} and {of_query:g}, popularity ^ -{power:g}; {items.history}")


def items_of(problem: Problem) -> Items:
    """Returns the items of a task."""
    assert problem.items is not None
    return problem.items


def counts(problem: Problem) -> np.ndarray:
    """Returns the weight of the relevant rows of each item in data.train, `[I]`."""
    items, (labels, weights) = items_of(problem), problem.trained
    wanted = items.wanted(problem.train)
    there = (labels > 0) & (wanted >= 0)
    return np.bincount(wanted[there], weights=weights[there], minlength=len(items))


def co_occurrence(problem: Problem) -> tuple[sparse.csr_matrix, Callable[[Table], sparse.csr_matrix]]:
    """Counts how often items occur together, `[I, I]`, and returns that with a function: the items of queries.

    With a history, an item occurs together with those before it, and a query has its own history. Without one, items
    occur together at a user, who has the items of data.train.

    Raises:
        LeftOut: There is neither a history nor a column of users.
    """
    items = items_of(problem)
    if items.history is not None:
        followed = followers(problem, np.ones_like)
        together = followed + followed.T
        together.setdiag(_occurrences(problem))
        return sparse.csr_matrix(together), lambda table: items.matrix(len(table), items.earlier(table))
    if problem.user is None:
        raise LeftOut("no feature has the items that a query had before, and no column names users; name it by --user")
    user, users = problem.user, Groups(problem.train.key(problem.user))
    had = _had(problem, users)
    return sparse.csr_matrix(had.T @ had), lambda table: sparse.csr_matrix(had[users.places(table.key(user))])


def _occurrences(problem: Problem) -> np.ndarray:
    """Returns how often each item occurs: as the item of a row, and as the first item of a history, `[I]`."""
    items, labels = items_of(problem), problem.trained[0]
    wanted = items.wanted(problem.train)
    found = items.earlier(problem.train)
    alone = np.bincount(found.row, minlength=len(problem.train))[found.row] == 1
    places = np.concatenate([wanted[(wanted >= 0) & (labels > 0)], found.item[alone]])
    return np.bincount(places, minlength=len(items)).astype(np.float64)


def _had(problem: Problem, users: Groups) -> sparse.csr_matrix:
    """Returns the last items of each user in data.train, `[U + 1, I]`; none in the last row, of an unknown user."""
    items, labels = items_of(problem), problem.trained[0]
    wanted = items.wanted(problem.train)
    rows = np.flatnonzero((labels > 0) & (wanted >= 0))[::-1]  # the last one first
    user = users.of_samples[rows]
    order = np.argsort(user, kind="stable")
    rows, user = rows[order], user[order]
    place = np.arange(len(rows)) - np.searchsorted(user, user)
    rows, user = rows[place < ITEMS_OF_A_USER], user[place < ITEMS_OF_A_USER]
    matrix = sparse.csr_matrix((np.ones(len(rows)), (user, wanted[rows])), shape=(len(users) + 1, len(items)))
    matrix.data[:] = 1
    return matrix


def followers(problem: Problem, weigh: Callable[[np.ndarray], np.ndarray]) -> sparse.csr_matrix:
    """Counts how often an item followed another in data.train, `[I, I]`: rows are earlier, columns later items.

    Args:
        problem: The task.
        weigh: Returns the weight of pairs, from how far back the earlier item was, `[N]`.
    """
    items, labels = items_of(problem), problem.trained[0]
    wanted = items.wanted(problem.train)
    found = items.earlier(problem.train)
    later = wanted[found.row]
    there = np.flatnonzero((later >= 0) & (later != found.item) & (labels[found.row] > 0))
    total = sparse.csr_matrix((len(items), len(items)))
    for start in range(0, len(there), PAIRS):
        here = there[start : start + PAIRS]
        weights = weigh(found.distance[here].astype(np.float64))
        total += sparse.csr_matrix((weights, (found.item[here], later[here])), shape=total.shape)
    return total


def most_of_each_row(matrix: sparse.csr_matrix, most: int) -> sparse.csr_matrix:
    """Returns a matrix with only the largest values of each row."""
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, row))
    kept = order[np.arange(len(order)) - matrix.indptr[row[order]] < most]
    return sparse.csr_matrix((matrix.data[kept], (row[kept], matrix.indices[kept])), shape=matrix.shape)


def ease_weights(gram: np.ndarray, penalty: float) -> np.ndarray:
    """Returns the weights between items that predict each from the others, `[I, I]`, with a diagonal of 0."""
    inverse = np.linalg.inv(gram + penalty * np.eye(len(gram)))
    weights = inverse / -np.diag(inverse)
    np.fill_diagonal(weights, 0)
    return weights
