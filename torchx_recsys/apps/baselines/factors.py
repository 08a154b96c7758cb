"""Ratings from who and what alone: means of users and items, and a matrix factorization of what they leave."""

from dataclasses import dataclass

import numpy as np

from torchx_recsys.apps.baselines.problem import Fitted, LeftOut, Predict, Problem
from torchx_recsys.apps.baselines.rates import Groups, overall
from torchx_recsys.apps.baselines.rows import Table

BIAS_PENALTIES = (1.0, 3.0, 10.0, 30.0)  # ratings of the mean that each user's and item's are joined with
SWEEPS = 10
DIMENSIONS = 16
FACTOR_PENALTIES = (0.02, 0.05, 0.1, 0.2)  # of each rating: by alternating least squares with weighted regularization
START = 0.1  # standard deviation of the first factors
AT_ONCE = 1 << 15  # ratings whose products are in memory at the same time


@dataclass(frozen=True)
class Ratings:
    """The rows to train on, by user and item.

    Attributes:
        users: Their users.
        items: Their items.
        mean: The mean label.
        labels: `[R]` float64.
        weights: `[R]` float64.
    """

    users: Groups
    items: Groups
    mean: float
    labels: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, problem: Problem) -> "Ratings":
        """Reads the users and items of a task.

        Raises:
            LeftOut: There is no column of users or of items.
        """
        if problem.user is None or problem.item is None:
            raise LeftOut("no two features of single ids name users and items; name them by --user and --item")
        users, items = (Groups(problem.train.key(name)) for name in (problem.user, problem.item))
        return cls(users, items, overall(problem), *problem.trained)

    def biases(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Returns what each user and each item adds to the mean, `[U + 1]` and `[I + 1]`; 0 for an unknown one."""
        of_users, of_items = np.zeros(len(self.users) + 1), np.zeros(len(self.items) + 1)
        user, item = self.users.of_samples, self.items.of_samples
        left = self.labels - self.mean
        for _ in range(SWEEPS):
            of_items[:-1] = self._means(self.items, left - of_users[user], penalty)
            of_users[:-1] = self._means(self.users, left - of_items[item], penalty)
        return of_users, of_items

    def _means(self, groups: Groups, values: np.ndarray, penalty: float) -> np.ndarray:
        return groups.sums(self.weights * values) / (groups.sums(self.weights) + penalty)


def user_and_item_means(problem: Problem) -> Fitted:
    """The mean label, plus what the user and the item add to it: alternating, regularized means."""
    ratings = Ratings.of(problem)
    penalty, predict = problem.choose(BIAS_PENALTIES, lambda penalty: _sum_of(ratings, problem, penalty))
    return Fitted(predict, f"{penalty:g} ratings of the mean; {problem.user}, {problem.item}")


def matrix_factorization(problem: Problem) -> Fitted:
    """User and item means, plus the inner product of their factors, by alternating least squares."""
    ratings = Ratings.of(problem)
    best = problem.choose(BIAS_PENALTIES, lambda penalty: _sum_of(ratings, problem, penalty))[0]

    def fit(penalty: float) -> Predict:
        base = _sum_of(ratings, problem, best)
        of_users, of_items = ratings.biases(best)
        user, item = ratings.users.of_samples, ratings.items.of_samples
        left = ratings.labels - ratings.mean - of_users[user] - of_items[item]
        p, q = als(user, item, left, ratings.weights, len(ratings.users), len(ratings.items), penalty, problem.seed)
        p, q = (np.vstack([factors, np.zeros(DIMENSIONS)]) for factors in (p, q))
        return lambda table: (
            base(table)
            + np.einsum(
                "rd,rd->r",
                p[ratings.users.places(_key(table, problem.user))],
                q[ratings.items.places(_key(table, problem.item))],
            )
        )

    penalty, predict = problem.choose(FACTOR_PENALTIES[::-1], fit)
    return Fitted(predict, f"{DIMENSIONS} factors, penalty {penalty:g}; {problem.user}, {problem.item}")


def als(
    user: np.ndarray,
    item: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    users: int,
    items: int,
    penalty: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Factorizes ratings by alternating least squares with weighted regularization (Zhou et al., AAIM 2008).

    Args:
        user: User of each rating, `[R]`.
        item: Item of each rating, `[R]`.
        labels: `[R]`.
        weights: `[R]`.
        users: Number of users, `U`.
        items: Number of items, `I`.
        penalty: L2 penalty of the factors, for each of their ratings.
        seed: Seed of the first factors.

    Returns:
        Factors of users, `[U, D]`, and of items, `[I, D]`.
    """
    q = np.random.default_rng(seed).normal(0, START, (items, DIMENSIONS))
    p = np.zeros((users, DIMENSIONS))
    for _ in range(SWEEPS):
        p = _solved(user, users, q[item], labels, weights, penalty)
        q = _solved(item, items, p[user], labels, weights, penalty)
    return p, q


def _solved(
    key: np.ndarray, keys: int, others: np.ndarray, labels: np.ndarray, weights: np.ndarray, penalty: float
) -> np.ndarray:
    """Returns the least-squares factors of each key, `[K, D]`, given the factors of the other side, `[R, D]`."""
    size = others.shape[1]
    left, right = np.zeros((keys, size, size)), np.zeros((keys, size))
    order = np.argsort(key, kind="stable")
    for start in range(0, len(order), AT_ONCE):
        here = order[start : start + AT_ONCE]
        firsts = np.flatnonzero(np.diff(key[here], prepend=-1))
        weighted = others[here] * weights[here, None]
        left[key[here][firsts]] += np.add.reduceat(weighted[:, :, None] * others[here][:, None, :], firsts)
        right[key[here][firsts]] += np.add.reduceat(weighted * labels[here, None], firsts)
    counts = np.bincount(key, weights=weights, minlength=keys)
    left += (penalty * np.maximum(counts, 1))[:, None, None] * np.eye(size)
    return np.linalg.solve(left, right[:, :, None])[:, :, 0]


def _sum_of(ratings: Ratings, problem: Problem, penalty: float) -> Predict:
    of_users, of_items = ratings.biases(penalty)

    def predict(table: Table) -> np.ndarray:
        user = ratings.users.places(_key(table, problem.user))
        item = ratings.items.places(_key(table, problem.item))
        return ratings.mean + of_users[user] + of_items[item]

    return predict


def _key(table: Table, name: str | None) -> np.ndarray:
    assert name is not None
    return table.key(name)
